#include "launcher/control/job_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/write_all.h"

namespace fsdprun {
namespace {

using json = nlohmann::json;

constexpr char kEnding[] = ".json";
constexpr char kSocketEnding[] = ".sock";
constexpr size_t kEntryBytesMax = 1 << 20;

std::string Encode(const JobEntry& entry) {
  const json object = {{"run_id", entry.run_id}, {"pid", entry.pid},
                       {"node", entry.node},     {"endpoint", entry.endpoint},
                       {"socket", entry.socket}, {"began_ms", entry.began_ms}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<JobEntry> Decode(const std::string& text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    return JobEntry{.run_id = object.at("run_id"),
                    .pid = object.at("pid"),
                    .node = object.at("node"),
                    .endpoint = object.at("endpoint"),
                    .socket = object.at("socket"),
                    .began_ms = object.at("began_ms")};
  } catch (const json::exception&) {
    return std::nullopt;  // Of another release.
  }
}

std::string ReadAll(int fd) {
  std::string text(kEntryBytesMax, '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

void RemoveFiles(const std::string& path) {
  ::unlink(path.c_str());
  const std::string stem = path.substr(0, path.size() - (sizeof(kEnding) - 1));
  ::unlink((stem + kSocketEnding).c_str());
}

}  // namespace

std::string JobsFolder(const std::string& runtime_folder) { return runtime_folder + "/jobs"; }

std::string JobFileName(int64_t pid, const std::string& run_id) {
  // The id is arbitrary text, and a socket's path is short.
  return absl::StrCat(pid, "-", absl::BytesToHexString(run_id.substr(0, 8)));
}

absl::StatusOr<JobFile> JobFile::Create(const std::string& folder, const JobEntry& entry) {
  const std::string stem = absl::StrCat(folder, "/", JobFileName(entry.pid, entry.run_id));
  const std::string made = stem + ".new";
  ::unlink(made.c_str());
  UniqueFd file(::open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  const std::string text = Encode(entry);
  // Locked before it has its name, and whole.
  if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 ||
      (errno = WriteAll(file.get(), text)) != 0 ||
      ::rename(made.c_str(), (stem + kEnding).c_str()) != 0) {
    const int error = errno;
    ::unlink(made.c_str());
    return absl::UnavailableError(absl::StrCat("write ", stem, kEnding, ": ", ErrorText(error)));
  }
  return JobFile(stem + kEnding, std::move(file));
}

JobFile::JobFile(std::string path, UniqueFd lock)
    : path_(std::move(path)), lock_(std::move(lock)) {}

JobFile::JobFile(JobFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

JobFile& JobFile::operator=(JobFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_, other.lock_);
  return *this;
}

JobFile::~JobFile() {
  if (!path_.empty()) {
    RemoveFiles(path_);
  }
}

std::vector<JobEntry> ListJobs(const std::string& folder) {
  std::vector<JobEntry> jobs;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = file.path().string();
    if (file.path().extension() != kEnding) {
      continue;
    }
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) {
      continue;
    }
    // Shared, or of two who look at once the second would take the first for the job.
    if (::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
      RemoveFiles(path);
    } else if (std::optional<JobEntry> entry = Decode(ReadAll(fd.get()))) {
      jobs.push_back(*std::move(entry));
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobEntry& a, const JobEntry& b) {
    return std::pair(a.began_ms, a.pid) < std::pair(b.began_ms, b.pid);
  });
  return jobs;
}

}  // namespace fsdprun
