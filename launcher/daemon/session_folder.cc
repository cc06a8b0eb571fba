#include "launcher/daemon/session_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/spawn.h"
#include "base/status_macros.h"
#include "base/write_all.h"

namespace fsdprun {
namespace {

constexpr size_t kIdDigits = 32;
/// Where a session's process finds the file that it holds.
constexpr int kAliveFd = 3;
constexpr absl::string_view kStarted = "started";

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  return absl::InternalError(absl::StrCat(what, " ", path, ": ", ErrorText(error)));
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".part";
  const UniqueFd file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) {
    return Failed("cannot make", temporary, errno);
  }
  if (const int error = WriteAll(file.get(), text); error != 0) {
    return Failed("cannot write", temporary, error);
  }
  return ::rename(temporary.c_str(), path.c_str()) == 0 ? absl::OkStatus()
                                                        : Failed("cannot name", path, errno);
}

absl::StatusOr<UniqueFd> OpenOutput(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return Failed("cannot make", path, errno);
  }
  return file;
}

std::vector<std::string> Variables(const Environment& environment) {
  std::vector<std::string> variables;
  variables.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

UniqueFd OpenPid(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

absl::StatusOr<SessionProcess> RestartSession(const std::string& folder, const std::string& program,
                                              const Environment& environment) {
  ASSIGN_OR_RETURN(const UniqueFd out, OpenOutput(folder + "/stdout"));
  ASSIGN_OR_RETURN(const UniqueFd error, OpenOutput(folder + "/stderr"));
  ASSIGN_OR_RETURN(const UniqueFd alive, OpenOutput(folder + "/alive"));
  if (::flock(alive.get(), LOCK_EX | LOCK_NB) != 0) {
    return Failed("cannot lock", folder + "/alive", errno);
  }
  if (::ftruncate(alive.get(), 0) != 0) {  // It has the number of the last process.
    return Failed("cannot empty", folder + "/alive", errno);
  }
  SessionProcess process{.is_child = true};
  ASSIGN_OR_RETURN(process.pid, SpawnDetached({.path = program,
                                               .command = {program, "--session", folder},
                                               .environment = Variables(environment),
                                               .descriptors = {{out.get(), STDOUT_FILENO},
                                                               {error.get(), STDERR_FILENO},
                                                               {alive.get(), kAliveFd}}}));
  process.pidfd = OpenPid(process.pid);
  if (!process.pidfd.valid()) {  // Nobody would see its end.
    const int why = errno;
    ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
    return Failed("cannot watch", program, why);
  }
  return process;
}

std::string KeeperSocketOf(const std::string& folder) { return folder + "/keeper"; }

bool IsSessionId(absl::string_view text) {
  return text.size() == kIdDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

std::string DaemonFolder::PathFor(const std::string& given, uint16_t port,
                                  const Environment& environment) {
  if (!given.empty()) {
    return std::filesystem::absolute(given).lexically_normal().string();
  }
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  if (runtime != environment.end() && runtime->second.starts_with('/')) {
    return absl::StrCat(runtime->second, "/fsdprun-daemon-", port);
  }
  return absl::StrCat("/tmp/fsdprun-daemon-", ::geteuid(), "-", port);
}

absl::StatusOr<DaemonFolder> DaemonFolder::Open(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::InvalidArgumentError(
        absl::StrCat("--runtime-dir: cannot make ", path, ": ", ErrorText(errno)));
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "--runtime-dir: ", path,
        " is not a folder of this user alone (mode 700), and jobs' secrets would not be safe "
        "there; remove it, or name another"));
  }
  UniqueFd lock(::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--runtime-dir: cannot make ", path, "/lock: ", ErrorText(errno)));
  }
  // Who had it may have removed it since.
  struct stat held {};
  struct stat named {};
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || ::fstat(lock.get(), &held) != 0 ||
      ::stat((path + "/lock").c_str(), &named) != 0 || held.st_ino != named.st_ino) {
    return absl::AlreadyExistsError(absl::StrCat("--runtime-dir: another daemon uses ", path,
                                                 "; end that one, or name another folder"));
  }
  return DaemonFolder(path, std::move(lock));
}

DaemonFolder::~DaemonFolder() {
  if (lock_.valid()) {
    ::unlink((path_ + "/lock").c_str());
    ::rmdir(path_.c_str());
  }
}

std::vector<std::string> DaemonFolder::Sessions() const {
  std::vector<std::string> found;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(path_, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (const std::string name = entry->path().filename().string(); IsSessionId(name)) {
      found.push_back(name);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

absl::StatusOr<SessionProcess> StartSession(const std::string& folder, const v1::SessionSpec& spec,
                                            const std::string& program,
                                            const Environment& environment) {
  if (::mkdir(folder.c_str(), 0700) != 0) {
    return Failed("cannot make", folder, errno);
  }
  const absl::Status written = WriteFile(folder + "/spec", spec.SerializeAsString());
  absl::StatusOr<SessionProcess> process =
      written.ok() ? RestartSession(folder, program, environment) : written;
  if (!process.ok()) {
    RemoveSessionFolder(folder);
  }
  return process;
}

// Whoever holds the file has its number in it, and the number is no other process's while it is
// held.
absl::StatusOr<SessionProcess> FindSession(const std::string& folder) {
  const UniqueFd alive(::open((folder + "/alive").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!alive.valid() && errno != ENOENT) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", folder, "/alive: ", ErrorText(errno)));
  }
  const auto is_over = [&alive] {
    return !alive.valid() || ::flock(alive.get(), LOCK_SH | LOCK_NB) == 0;
  };
  if (is_over()) {
    return SessionProcess();
  }
  char text[32] = "";
  SessionProcess process;
  const ssize_t n = ::pread(alive.get(), text, sizeof(text) - 1, 0);
  const absl::string_view line(text, n > 0 ? static_cast<size_t>(n) : 0);
  if (!absl::SimpleAtoi(line.substr(0, line.find('\n')), &process.pid)) {
    return absl::UnavailableError("the session is being started");
  }
  process.pidfd = OpenPid(process.pid);
  const int why = errno;
  if (is_over()) {
    return SessionProcess();
  }
  if (!process.pidfd.valid()) {
    return absl::UnavailableError(absl::StrCat("cannot watch the session: ", ErrorText(why)));
  }
  return process;
}

absl::StatusOr<v1::SessionSpec> ReadSessionSpec(const std::string& folder) {
  std::ifstream file(folder + "/spec", std::ios::binary);
  v1::SessionSpec spec;
  if (!file || !spec.ParseFromIstream(&file)) {
    return absl::DataLossError(absl::StrCat("cannot read ", folder, "/spec"));
  }
  return spec;
}

std::optional<int> ReadSessionExit(const std::string& folder) {
  std::ifstream file(folder + "/exit");
  int code = 0;
  return file >> code ? std::optional<int>(code) : std::nullopt;
}

bool HasSessionStarted(const std::string& folder) {
  std::ifstream file(folder + "/alive");
  pid_t pid = 0;
  std::string word;
  return file >> pid >> word && word == kStarted;
}

void RemoveSessionFolder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

absl::Status EnterSessionFolder(const std::string& folder) {
  struct stat held {};
  struct stat named {};
  const bool is_held = ::fstat(kAliveFd, &held) == 0 &&
                       ::stat((folder + "/alive").c_str(), &named) == 0 &&
                       held.st_dev == named.st_dev && held.st_ino == named.st_ino;
  if (!is_held) {
    return absl::FailedPreconditionError(
        absl::StrCat("--session ", folder,
                     " is for daemons (fsdp-agent --daemon), which start sessions, and not for use "
                     "by hand"));
  }
  ::fcntl(kAliveFd, F_SETFD, FD_CLOEXEC);
  const std::string text = absl::StrCat(::getpid(), "\n");
  return ::write(kAliveFd, text.data(), text.size()) == static_cast<ssize_t>(text.size())
             ? absl::OkStatus()
             : Failed("cannot write", folder + "/alive", errno);
}

// A daemon that cannot be told of it does without.
void NoteSessionStart() {
  const std::string line = absl::StrCat(kStarted, "\n");
  [[maybe_unused]] const ssize_t written = ::write(kAliveFd, line.data(), line.size());
}

absl::Status WriteSessionExit(const std::string& folder, int code) {
  return WriteFile(folder + "/exit", absl::StrCat(code, "\n"));
}

}  // namespace fsdprun
