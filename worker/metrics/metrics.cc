#include "worker/metrics/metrics.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace fsdprun::worker {
namespace {

constexpr std::string_view kRecordStart = "{\"step\": ";

/// JSON has no infinity and no NaN.
std::string Exact(double value) {
  if (!std::isfinite(value)) {
    return "null";
  }
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string IfKnown(const char* name, double value) {
  return value > 0 ? std::string(", \"") + name + "\": " + Exact(value) : std::string();
}

[[noreturn]] void Fail(const std::string& action, const std::string& path, const std::string& cause,
                       int error_number = 0) {
  throw MetricsError("cannot " + action + " metrics file " + path + ": " + cause +
                         "; choose another metrics.jsonl or make room",
                     error_number);
}

[[noreturn]] void Fail(const std::string& action, const std::string& path, int error_number) {
  Fail(action, path,
       error_number == ENXIO ? "nobody reads from this pipe" : std::strerror(error_number),
       error_number);
}

/// How long the reader of a pipe that is full may take.
constexpr int kReaderMaxMs = 10'000;

/// False if the reader of a pipe does not make room in time.
bool WaitForReader(int fd) {
  pollfd room{fd, POLLOUT, 0};
  return poll(&room, 1, kReaderMaxMs) != 0;
}

/// 0 or an errno.
int WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno == EAGAIN) {
      if (!WaitForReader(fd)) {
        return EAGAIN;
      }
    } else if (written < 0 && errno != EINTR) {
      return errno;
    }
    done += written > 0 ? static_cast<size_t>(written) : 0;
  }
  return 0;
}

/// Only a regular file can contain records of an earlier run.
bool IsRegular(int fd) {
  struct stat stats {};
  return fstat(fd, &stats) == 0 && S_ISREG(stats.st_mode);
}

int OpenForAppending(const std::string& path) {
  std::error_code made;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, made);
  }
  // O_NONBLOCK: opening a FIFO must not wait for its reader.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) {
    Fail("open", path, errno == ENOENT && made ? made.value() : errno);
  }
  // Nor may a pipe whose reader does not read hold up the training for long.
  if (IsRegular(fd) && fcntl(fd, F_SETFL, O_APPEND) != 0) {
    Fail("open", path, errno);
  }
  return fd;
}

/// Nothing unless the line is a record.
std::optional<nlohmann::json> RecordIn(std::string_view line) {
  auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool is_record =
      record.is_object() && record.contains("step") && record.at("step").is_number_integer();
  return is_record ? std::optional(std::move(record)) : std::nullopt;
}

struct Origin {
  bool is_record = false;
  int64_t step = 0;
  std::string run;     // empty: untold
  std::string launch;  // as well
  uint64_t generation = 0;
};

Origin OriginOf(std::string_view line) {
  const auto record = RecordIn(line);
  if (!record) {
    return {};
  }
  const auto text = [&record](const char* key) {
    const auto found = record->find(key);
    return found != record->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Origin origin{true, record->at("step").get<int64_t>(), text("run"), text("launch"), 0};
  if (const auto generation = record->find("generation");
      generation != record->end() && generation->is_number_unsigned()) {
    origin.generation = generation->get<uint64_t>();
  }
  return origin;
}

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Such as /dev/stdout, which may lead to a regular file that is not only ours.
bool IsOfTheSystem(const std::string& path) {
  const std::string absolute = std::filesystem::absolute(path).lexically_normal().string();
  return absolute.starts_with("/dev/") || absolute.starts_with("/proc/");
}

/// Throws if the file's first line is not a record: then it is another file of the user's.
void CheckIsMetricsFile(int fd, const std::string& path) {
  if (!IsRegular(fd)) {
    return;
  }
  constexpr size_t kFirstLineMax = 4096;
  std::string line(kFirstLineMax, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(in.gcount()));
  const size_t end = line.find('\n');
  const bool is_torn = end == std::string::npos &&
                       line.substr(0, kRecordStart.size()) == kRecordStart.substr(0, line.size());
  if (!is_torn && !RecordIn(std::string_view(line).substr(0, end))) {
    Fail("use", path, "it exists and is not a metrics file; it was not changed");
  }
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), {}};
  if (!in) {
    Fail("read", path, errno);
  }
  return content;
}

std::string FreeName(const std::string& path) {
  int number = 1;
  while (std::filesystem::exists(path + "." + std::to_string(number))) {
    ++number;
  }
  return path + "." + std::to_string(number);
}

/// Makes `path` a new file with what is kept, which `fd` then is; nobody sees it without.
void Replace(int& fd, const std::string& path, const MetricsCut& cut,
             const std::function<bool()>& is_replaced) {
  struct stat earlier {};
  if (fstat(fd, &earlier) != 0) {
    Fail("open", path, errno);
  }
  const std::string place = path + ".new-" + std::to_string(getpid());
  unlink(place.c_str());
  const int made = open(place.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
                        earlier.st_mode & 07777);
  if (made < 0) {
    Fail("make the new", path, errno);
  }
  int error = WriteAll(made, cut.kept);
  // Before the new file has the name, or a power failure could leave neither's records.
  if (error == 0 && fsync(made) != 0) {
    error = errno;
  }
  if (error == 0 && is_replaced && is_replaced()) {
    close(made);
    unlink(place.c_str());
    throw MetricsReplacedError(
        "metrics file " + path + " is left alone, because another start has taken over", 0);
  }
  if (error == 0 && cut.loses_others) {
    // A link, if there are any here: then the records and the log have a name at any time.
    const std::string aside = FreeName(path);
    const bool is_moved =
        link(path.c_str(), aside.c_str()) == 0 || rename(path.c_str(), aside.c_str()) == 0;
    error = is_moved ? 0 : errno;
  }
  if (error == 0 && rename(place.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    close(made);
    unlink(place.c_str());
    Fail("begin the new", path, error);
  }
  close(std::exchange(fd, made));
}

}  // namespace

std::string FormatStepRecord(const StepMetrics& m) {
  return "{\"step\": " + std::to_string(m.step) + ", \"loss\": " + Exact(double{m.loss}) +
         ", \"grad_norm\": " + Exact(double{m.grad_norm}) + ", \"lr\": " + Exact(m.lr) +
         ", \"tokens\": " + std::to_string(m.tokens) +
         ", \"tokens_per_second\": " + Exact(m.tokens_per_second) +
         ", \"step_seconds\": " + Exact(m.step_seconds) +
         ", \"data_wait_seconds\": " + Exact(m.data_wait_seconds) +
         IfKnown("flops_per_second", m.flops_per_second) + IfKnown("mfu", m.mfu) +
         ", \"memory_bytes\": " + std::to_string(m.memory_bytes) +
         (m.is_skipped ? ", \"skipped\": true}" : "}");
}

std::string FormatWarningRecord(int64_t step, const std::string& warning) {
  return "{\"step\": " + std::to_string(step) + ", \"warning\": " + Quoted(warning) + "}";
}

std::string FormatEvalRecord(int64_t step, double loss) {
  return "{\"step\": " + std::to_string(step) + ", \"eval_loss\": " + Exact(loss) + "}";
}

MetricsCut CutRecords(const std::string& content, int64_t completed_steps, const std::string& run) {
  size_t kept = 0;
  bool is_keeping = true;
  bool loses_others = false;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    if (end == std::string::npos) {
      break;
    }
    const Origin origin = OriginOf(std::string_view(content).substr(begin, end - begin));
    const bool is_own = origin.is_record && origin.run == run;
    const bool is_untold = origin.is_record && origin.run.empty() && completed_steps > 0;
    is_keeping = is_keeping && (is_own || is_untold) && origin.step <= completed_steps;
    kept = is_keeping ? end + 1 : kept;
    const bool is_lost_step = is_own && origin.step > completed_steps && completed_steps > 0;
    loses_others = loses_others || (!is_keeping && !is_lost_step);
    begin = end + 1;
  }
  return {content.substr(0, kept), loses_others};
}

bool IsOfSuccessor(const std::string& content, const std::string& launch, uint64_t generation) {
  std::istringstream lines(content);
  for (std::string line; !launch.empty() && std::getline(lines, line);) {
    const Origin origin = OriginOf(line);
    if (origin.launch == launch && origin.generation > generation) {
      return true;
    }
  }
  return false;
}

MetricsLog::MetricsLog(Later /*later*/, std::string path, int64_t completed_steps,
                       MetricsOrigin origin)
    : path_(std::move(path)),
      completed_steps_(completed_steps),
      run_(std::move(origin.run)),
      launch_(std::move(origin.launch)),
      generation_(origin.generation) {
  if (!run_.empty()) {
    origin_ = ", \"run\": " + Quoted(run_) + ", \"launch\": " + Quoted(launch_) +
              ", \"generation\": " + std::to_string(generation_) + "}";
  }
}

MetricsLog::MetricsLog(const std::string& path, int64_t completed_steps, MetricsOrigin origin)
    : MetricsLog(Later{}, path, completed_steps, std::move(origin)) {
  Open();
}

void MetricsLog::OpenEarlier() {
  const int fd = OpenForAppending(path_);
  try {
    CheckIsMetricsFile(fd, path_);
    is_file_ = IsRegular(fd) && !IsOfTheSystem(path_);
    if (is_file_) {
      path_ = std::filesystem::canonical(path_).string();
    }
  } catch (...) {
    close(fd);
    throw;
  }
  fd_ = fd;
}

void MetricsLog::Open(const std::function<bool()>& is_replaced) {
  if (is_open_ || path_.empty()) {
    return;
  }
  if (std::error_code unknown; fd_ >= 0 && !std::filesystem::exists(path_, unknown) && !unknown) {
    close(std::exchange(fd_, -1));
  }
  if (fd_ < 0) {
    OpenEarlier();
  } else {
    RequireOwnFile();  // or an older process would take the file from its successor
  }
  if (is_file_) {
    const std::string content = ReadAll(path_);
    if (IsOfSuccessor(content, launch_, generation_)) {
      throw MetricsReplacedError("metrics file " + path_ +
                                     " is written by a newer start of this job, so this process "
                                     "leaves it alone",
                                 0);
    }
    Replace(fd_, path_, CutRecords(content, completed_steps_, run_), is_replaced);
  }
  is_open_ = true;
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void MetricsLog::RequireOwnFile() {
  struct stat own {};
  struct stat named {};
  if (fstat(fd_, &own) != 0) {
    Fail("write", path_, errno);
  }
  if (stat(path_.c_str(), &named) == 0) {
    if (named.st_ino != own.st_ino || named.st_dev != own.st_dev) {
      throw MetricsReplacedError("metrics file " + path_ +
                                     " is another one now, which this process leaves alone: "
                                     "somebody has replaced it, such as a newer start of this job",
                                 0);
    }
  } else if (errno == ENOENT && own.st_nlink == 0) {
    const int fd = OpenForAppending(path_);
    close(std::exchange(fd_, fd));
  }
}

void MetricsLog::Append(const std::string& record) {
  if (path_.empty()) {
    return;
  }
  Open();
  struct stat before {};
  if (is_file_) {
    RequireOwnFile();
    if (fstat(fd_, &before) != 0) {
      Fail("write", path_, errno);
    }
  }
  const std::string line =
      (origin_.empty() ? record : record.substr(0, record.size() - 1) + origin_) + "\n";
  if (const int error = WriteAll(fd_, line); error != 0) {
    // No part of a record may stay, which the next one would be appended to.
    [[maybe_unused]] const int cut = is_file_ ? ftruncate(fd_, before.st_size) : 0;
    Fail("write", path_, error);
  }
}

void MetricsLog::CheckWritable(const std::string& path) {
  if (!path.empty()) {
    const int fd = OpenForAppending(path);
    try {
      CheckIsMetricsFile(fd, path);
    } catch (...) {
      close(fd);
      throw;
    }
    close(fd);
  }
}

}  // namespace fsdprun::worker
