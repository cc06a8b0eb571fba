// fsdp-keeper: the parent of a node's workers. Started by the agent with a socket as descriptor 3.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "agent/process/keeper.h"
#include "agent/process/orphaned_spool.h"
#include "proto/standard_streams.h"

namespace {

constexpr int kAgentFd = 3;
/// With a grace only.
constexpr int kListenerFd = 4;
/// What the agent wants to be held open while it may be replaced: it may be closed.
constexpr int kHeldFd = 5;
constexpr int64_t kNsPerMs = 1'000'000;

/// The keeper acts on commands from its socket only: a Ctrl-C or a node-wide TERM must not end it
/// before its workers.
void ShieldFromSignals() {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP, SIGTTIN, SIGTTOU,
                           SIGXFSZ, SIGUSR1, SIGUSR2, SIGALRM}) {
    ::sigaction(signal, &ignore, nullptr);
  }
  // An ignored SIGCHLD is inherited across exec; the kernel would then reap the workers and discard
  // their exit status.
  ::signal(SIGCHLD, SIG_DFL);
  // Blocked too: a worker between clone and exec inherits the mask, so that a signal meant for it
  // waits instead of being ignored. It resets both just before exec.
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&blocked, fault);
  }
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

struct Ending {
  int status = 0;
  /// The launcher, or the last agent, was lost.
  bool was_abandoned = false;
  /// A pidfd; -1: there was none but the first.
  int last_agent = -1;
};

/// The log writer has ended by then.
Ending Serve(const fsdprun::keeper::Keeper::NamedSocket& named) {
  fsdprun::keeper::Keeper keeper(kAgentFd, named);
  const int status = keeper.Run();
  return {status, keeper.was_abandoned(), keeper.TakeOwner()};
}

bool IsStreamSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof(type);
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

}  // namespace

// `fsdp-keeper [SPOOL [GRACE [VITALS]]]`: the launcher's directory of output that no log keeps,
// maybe empty; for how many milliseconds another agent is awaited at the socket that listens as
// descriptor 4, if one does; the directory of the workers' vitals, maybe empty. What is open as
// descriptor 5 then stays open.
int main(int argc, char** argv) {
  if (!IsStreamSocket(kAgentFd)) {
    std::fprintf(stderr,
                 "fsdp-keeper: descriptor 3 is not the agent's socket; fsdp-keeper is started by "
                 "fsdprun or fsdp-agent, not by hand\n");
    return 2;
  }
  ::setsid();  // Fails harmlessly when the agent already made us a session leader.
  ShieldFromSignals();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::fcntl(kAgentFd, F_SETFD, FD_CLOEXEC);
  fsdprun::keeper::Keeper::NamedSocket named;
  if (argc > 2 && IsStreamSocket(kListenerFd)) {
    named = {.listener = kListenerFd, .grace_ns = std::atoll(argv[2]) * kNsPerMs};
    ::fcntl(kListenerFd, F_SETFD, FD_CLOEXEC);
    ::fcntl(kHeldFd, F_SETFD, FD_CLOEXEC);
    ::fcntl(kListenerFd, F_SETFL, O_NONBLOCK);
  }
  const int launcher = static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0));
  const Ending ending = Serve(named);
  std::vector<std::string> leavings;
  for (const int place : {3, 1}) {  // Vitals first: they are on no disk that could hang.
    if (argc > place && argv[place][0] != '\0') {
      leavings.emplace_back(argv[place]);
    }
  }
  if (!leavings.empty() && ending.was_abandoned) {
    const int owner = ending.last_agent >= 0 ? ending.last_agent : launcher;
    fsdprun::keeper::RemoveLeavingsOfDead(owner, leavings);
  }
  return ending.status;
}
