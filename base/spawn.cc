#include "base/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/unique_fd.h"

extern char** environ;

namespace fsdprun {
namespace {

/// posix_spawn's two lists, with what every program gets that is detached.
class SpawnSettings {
 public:
  SpawnSettings() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t* actions() { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers(texts.size() + 1, nullptr);
  std::transform(texts.begin(), texts.end(), pointers.begin(),
                 [](std::string& text) { return text.data(); });
  return pointers;
}

}  // namespace

absl::StatusOr<pid_t> SpawnDetached(const DetachedProgram& program) {
  int last = STDERR_FILENO;
  for (const auto& [own, number] : program.descriptors) {
    last = std::max(last, number);
  }
  SpawnSettings settings;
  posix_spawn_file_actions_addopen(settings.actions(), STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // Not with a number that one of the program's has: it would be overwritten before its turn.
  std::vector<UniqueFd> moved;
  for (const auto& [own, number] : program.descriptors) {
    moved.emplace_back(::fcntl(own, F_DUPFD_CLOEXEC, last + 1));
    if (!moved.back().valid()) {
      return absl::UnavailableError(
          absl::StrCat("prepare the descriptors of ", program.path, ": ", ErrorText(errno)));
    }
    posix_spawn_file_actions_adddup2(settings.actions(), moved.back().get(), number);
  }
  posix_spawn_file_actions_addclosefrom_np(settings.actions(), last + 1);
  std::vector<std::string> words = program.command;
  std::vector<std::string> variables = program.environment;
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, program.path.c_str(), settings.actions(), settings.attributes(),
                    Pointers(words).data(), Pointers(variables).data());
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("start ", program.path, ": ", ErrorText(error)));
  }
  return pid;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

}  // namespace fsdprun
