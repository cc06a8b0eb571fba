#include "agent/local/store_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "agent/store/store_server.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/spawn.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int kListenerFd = 3;
constexpr int kKeeperFd = 4;

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
  ASSIGN_OR_RETURN(id_.pid, SpawnDetached({.path = program_,
                                           .command = {program_, "--store", absl::StrCat(clients)},
                                           .environment = OwnEnvironment(),
                                           .descriptors = {{bound.socket.get(), kListenerFd},
                                                           {keeper_pidfd, kKeeperFd}}}));
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
