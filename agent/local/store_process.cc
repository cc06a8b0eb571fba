#include "agent/local/store_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "agent/store/store_server.h"
#include "base/descriptor_limit.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"

extern char** environ;

namespace fsdprun {
namespace {

constexpr int kListenerFd = 3;
constexpr int kKeeperFd = 4;

/// Not with a number that the process's own descriptors have.
UniqueFd MoveAway(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, kKeeperFd + 1)); }

/// In a session of its own: a signal for the agent's group is none for it. Returns an errno.
int Spawn(const std::string& program, int listener, int keeper, std::string clients, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, listener, kListenerFd);
  posix_spawn_file_actions_adddup2(&actions, keeper, kKeeperFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kKeeperFd + 1);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  std::string path = program;
  std::string option = "--store";
  char* argv[] = {path.data(), option.data(), clients.data(), nullptr};
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

StoreProcess::StoreProcess(EventLoop& loop, std::string program)
    : loop_(loop), program_(std::move(program)) {}

StoreProcess::~StoreProcess() {
  if (pidfd_.valid()) {
    loop_.Unwatch(pidfd_.get());
    ::waitpid(id_.pid, nullptr, WNOHANG);
  }
}

absl::StatusOr<int> StoreProcess::Renew(const std::string& listen_on, int keeper_pidfd,
                                        size_t clients) {
  End();
  ASSIGN_OR_RETURN(const BoundStore bound, BindStore(listen_on));
  const UniqueFd listener = MoveAway(bound.socket.get());
  const UniqueFd keeper = MoveAway(keeper_pidfd);
  if (!listener.valid() || !keeper.valid()) {
    return absl::UnavailableError(
        absl::StrCat("prepare the descriptors of the store's process: ", ErrorText(errno)));
  }
  if (const int error =
          Spawn(program_, listener.get(), keeper.get(), absl::StrCat(clients), id_.pid);
      error != 0) {
    id_ = {};
    return absl::UnavailableError(
        absl::StrCat("start ", program_, " for the store: ", ErrorText(error)));
  }
  ProcessInfo process;
  id_.start_time_ticks = ReadProcess(id_.pid, process) ? process.start_time_ticks : 0;
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, id_.pid, 0)));
  if (pidfd_.valid()) {
    loop_.Watch(pidfd_.get(), EPOLLIN, [this](uint32_t) { OnEnd(); });
  }
  return bound.port;
}

/// Nobody needs to wait for that: the next one is at another port.
void StoreProcess::End() {
  if (pidfd_.valid()) {  // Which needs no other descriptor: it is waited for.
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  } else if (id_.pid > 0) {
    KillExactly({.pid = id_.pid, .start_time_ticks = id_.start_time_ticks});
  }
  if (pidfd_.valid()) {
    loop_.Unwatch(pidfd_.get());
    pidfd_.reset();
    ::waitpid(id_.pid, nullptr, 0);  // It was killed, and has little to give back.
  }
  id_ = {};
}

void StoreProcess::OnEnd() {
  loop_.Unwatch(pidfd_.get());
  pidfd_.reset();
  ::waitpid(id_.pid, nullptr, WNOHANG);
  Log(LogLevel::kWarning, absl::StrCat("the process that served the workers' store (pid ", id_.pid,
                                       ") has ended; workers that use it fail"));
  id_ = {};
}

int RunStore(const std::string& clients) {
  int64_t count = 0;
  int is_listening = 0;
  socklen_t size = sizeof(is_listening);
  if (!absl::SimpleAtoi(clients, &count) || count < 0 ||
      ::getsockopt(kListenerFd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) != 0 ||
      is_listening == 0 || ::fcntl(kKeeperFd, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr,
                 "fsdp-agent: --store is for agents of a daemon, and not for use by hand\n");
    return 2;
  }
  RaiseDescriptorLimit();
  EventLoop loop;
  StoreServer server(loop);
  server.ExpectClients(static_cast<size_t>(count));
  if (const auto port = server.ListenOn(UniqueFd(kListenerFd)); !port.ok()) {
    std::fprintf(stderr, "fsdp-agent: %s\n", std::string(port.status().message()).c_str());
    return 1;
  }
  loop.Watch(kKeeperFd, EPOLLIN, [&loop](uint32_t) { loop.Stop(); });
  loop.Run();
  return 0;
}

}  // namespace fsdprun
