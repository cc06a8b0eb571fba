#include "fsdpctl/run/client.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/run/exec_words.h"

namespace fsdprun {
namespace {

constexpr size_t kReadBytes = 4096;
constexpr int kSignalBase = 128;

// A file rather than a pipe: nobody has to feed it while the output is read.
absl::StatusOr<UniqueFd> FileWith(const std::string& text) {
  UniqueFd file(::memfd_create("input", MFD_CLOEXEC));
  const bool is_written = file.valid() && (errno = WriteAll(file.get(), text)) == 0 &&
                          ::lseek(file.get(), 0, SEEK_SET) == 0;
  if (!is_written) {
    return absl::InternalError(absl::StrCat("keep ", text.size(), " bytes: ", ErrorText(errno)));
  }
  return file;
}

std::string ReadToEnd(int fd) {
  std::string text;
  char piece[kReadBytes];
  for (ssize_t n = 1; n > 0 || (n < 0 && errno == EINTR);) {
    n = ::read(fd, piece, sizeof(piece));
    text.append(piece, n > 0 ? static_cast<size_t>(n) : 0);
  }
  return text;
}

// Returns an errno.
int Spawn(const std::vector<std::string>& command, const Environment& environment, int input,
          int output, pid_t* pid) {
  const std::vector<std::string> variables = ExecVariables(environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  const int error = ::posix_spawnp(pid, command.front().c_str(), &actions, nullptr,
                                   ExecPointers(command).data(), ExecPointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

absl::StatusOr<ClientResult> RunClient(const std::vector<std::string>& command,
                                       const Environment& environment, const std::string& input) {
  ASSIGN_OR_RETURN(const UniqueFd file, FileWith(input));
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(
        absl::StrCat("pipe for the output of ", command.front(), ": ", ErrorText(errno)));
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_t pid = -1;
  const int error = Spawn(command, environment, file.get(), write_end.get(), &pid);
  write_end.reset();
  if (error == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat("cannot start ", command.front(),
                     ": no such program on PATH; run this where Slurm's programs are, such as a "
                     "login node, or put them on PATH"));
  }
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", command.front(), ": ", ErrorText(error)));
  }
  ClientResult result{.output = ReadToEnd(read_end.get())};
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
  return result;
}

}  // namespace fsdprun
