#include "launcher/chaos/run/scratch_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/process/process_scan.h"
#include "base/error_text.h"

namespace fsdprun::chaos {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "fsdprun_chaos_";
constexpr char kLock[] = "in-use";
constexpr char kVariable[] = "TMPDIR";

void RemoveAll(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

/// Under its name only once it is locked: whoever clears up finds it so, or not at all.
UniqueFd MakeLock(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kLock);
  const std::string early = absl::StrCat(path, ".early");
  UniqueFd lock(::open(early.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_made = lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 &&
                       ::rename(early.c_str(), path.c_str()) == 0;
  return is_made ? std::move(lock) : UniqueFd();
}

/// By a process of a job whose `fsdprun chaos` was killed.
bool IsInUse(const std::string& folder) {
  const std::string variable = absl::StrCat(kVariable, "=", folder);
  std::vector<ProcessInfo> processes;
  ScanProcesses(processes);
  for (const ProcessInfo& process : processes) {
    std::ifstream file(absl::StrCat("/proc/", process.pid, "/environ"), std::ios::binary);
    const std::string environment = absl::StrCat(
        absl::string_view("\0", 1), std::string{std::istreambuf_iterator<char>(file), {}});
    if (absl::StrContains(environment, absl::StrCat(absl::string_view("\0", 1), variable,
                                                    absl::string_view("\0", 1)))) {
      return true;
    }
  }
  return false;
}

bool IsOwnFolder(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

/// Of a program that was killed.
void RemoveIfLeft(const std::string& folder) {
  const UniqueFd lock(
      ::open(absl::StrCat(folder, "/", kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && !IsInUse(folder)) {
    RemoveAll(folder);
  }
}

void RemoveLeft(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (absl::StartsWith(it->path().filename().string(), kPrefix) && IsOwnFolder(path)) {
      RemoveIfLeft(path);
    }
  }
}

}  // namespace

ScratchFolder::ScratchFolder(std::string path, UniqueFd lock)
    : path_(std::move(path)), lock_(std::move(lock)) {}

ScratchFolder::~ScratchFolder() { RemoveAll(path_); }

absl::StatusOr<std::unique_ptr<ScratchFolder>> ScratchFolder::Make(const Environment& environment) {
  const auto variable = environment.find(kVariable);
  const bool is_given = variable != environment.end() && !variable->second.empty();
  const std::string parent = is_given ? variable->second : "/tmp";
  RemoveLeft(parent);
  std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
  UniqueFd lock;
  if (::mkdtemp(path.data()) != nullptr) {
    lock = MakeLock(path);
  }
  if (!lock.valid()) {
    const int error = errno;
    ::rmdir(path.c_str());
    return absl::UnavailableError(absl::StrCat("make a folder in ", parent,
                                               " for what the job leaves: ", ErrorText(error),
                                               "; let TMPDIR name a folder that can be written"));
  }
  return std::unique_ptr<ScratchFolder>(new ScratchFolder(std::move(path), std::move(lock)));
}

}  // namespace fsdprun::chaos
