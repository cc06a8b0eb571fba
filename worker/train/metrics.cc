#include "worker/train/metrics.h"

#include <fcntl.h>
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
#include <string_view>
#include <system_error>

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

void WriteAll(int fd, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written < 0 && errno != EINTR) {
      Fail("write", path, errno);
    }
    done += written > 0 ? static_cast<size_t>(written) : 0;
  }
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
  if (fcntl(fd, F_SETFL, O_APPEND) != 0) {
    Fail("open", path, errno);
  }
  return fd;
}

/// Only a regular file can contain records of an earlier run.
bool IsRegular(int fd) {
  struct stat stats {};
  return fstat(fd, &stats) == 0 && S_ISREG(stats.st_mode);
}

bool IsRecord(std::string_view line) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.contains("step") && record.at("step").is_number_integer();
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
  if (!is_torn && !IsRecord(std::string_view(line).substr(0, end))) {
    Fail("use", path, "it exists and is not a metrics file; it was not changed");
  }
}

/// Not what a link leads to, such as /dev/stdout.
bool HasEarlierRecords(const std::string& path) {
  struct stat stats {};
  return lstat(path.c_str(), &stats) == 0 && S_ISREG(stats.st_mode) && stats.st_size > 0;
}

void MoveAside(const std::string& path) {
  int number = 1;
  while (std::filesystem::exists(path + "." + std::to_string(number))) {
    ++number;
  }
  if (rename(path.c_str(), (path + "." + std::to_string(number)).c_str()) != 0) {
    Fail("move aside the earlier", path, errno);
  }
}

}  // namespace

std::string FormatStepRecord(const StepMetrics& m) {
  return "{\"step\": " + std::to_string(m.step) + ", \"loss\": " + Exact(double{m.loss}) +
         ", \"grad_norm\": " + Exact(double{m.grad_norm}) + ", \"lr\": " + Exact(m.lr) +
         ", \"tokens\": " + std::to_string(m.tokens) +
         ", \"tokens_per_second\": " + Exact(m.tokens_per_second) +
         ", \"step_seconds\": " + Exact(m.step_seconds) +
         ", \"memory_bytes\": " + std::to_string(m.memory_bytes) + "}";
}

std::string FormatEvalRecord(int64_t step, double loss) {
  return "{\"step\": " + std::to_string(step) + ", \"eval_loss\": " + Exact(loss) + "}";
}

std::string KeptRecords(const std::string& content, int64_t completed_steps) {
  size_t kept = 0;
  while (kept < content.size()) {
    const size_t end = content.find('\n', kept);
    if (end == std::string::npos) {
      break;
    }
    const auto record = nlohmann::json::parse(content.begin() + static_cast<ptrdiff_t>(kept),
                                              content.begin() + static_cast<ptrdiff_t>(end),
                                              nullptr, /*allow_exceptions=*/false);
    const bool is_kept = record.is_object() && record.contains("step") &&
                         record.at("step").is_number_integer() &&
                         record.at("step").get<int64_t>() <= completed_steps;
    if (!is_kept) {
      break;
    }
    kept = end + 1;
  }
  return content.substr(0, kept);
}

MetricsLog::MetricsLog(const std::string& path, int64_t completed_steps) : path_(path) {
  if (path.empty()) {
    return;
  }
  fd_ = OpenForAppending(path);
  off_t kept = 0;
  CheckIsMetricsFile(fd_, path);
  if (completed_steps == 0 && HasEarlierRecords(path)) {
    MoveAside(path);
    close(fd_);
    fd_ = OpenForAppending(path);
  }
  if (completed_steps > 0 && IsRegular(fd_)) {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      Fail("read", path, errno);
    }
    const std::string content{std::istreambuf_iterator<char>(in), {}};
    kept = static_cast<off_t>(KeptRecords(content, completed_steps).size());
  }
  // A device or a pipe cannot be truncated, and need not be.
  if (ftruncate(fd_, kept) != 0 && errno != EINVAL) {
    Fail("cut", path, errno);
  }
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void MetricsLog::Append(const std::string& record) {
  if (fd_ >= 0) {
    WriteAll(fd_, record + "\n", path_);
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
