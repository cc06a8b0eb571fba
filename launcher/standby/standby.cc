#include "launcher/standby/standby.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/spawn.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int kReapWaitMs = 100;

}  // namespace

Standby::Standby(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {}

Standby::~Standby() {
  loop_.Cancel(retry_timer_);
  End();
}

void Standby::AddListener(UniqueFd listener) {
  if (!listener.valid()) {
    Log(LogLevel::kWarning,
        "the standby of this launcher's coordinator has one socket less: out of descriptors");
    return;
  }
  listeners_.push_back(std::move(listener));
  if (pid_ == 0) {
    return;  // The next one gets all.
  }
  std::vector<UniqueFd> added;
  added.push_back(std::move(listeners_.back()));
  const absl::Status sent = SendHandover(socket_.get(), options_.handover, added);
  listeners_.back() = std::move(added.back());
  if (!sent.ok()) {
    OnLost(absl::StrCat("cannot be told of a socket: ", sent.message()));
  }
}

void Standby::Keep(const job::Record& record) {
  latest_ = record;
  if (retry_timer_ == 0) {
    TellOfLatest();
  }
}

void Standby::TellOfLatest() {
  const absl::Status status =
      pid_ == 0 ? Start() : SendRecord(socket_.get(), latest_, options_.job);
  if (!status.ok()) {
    OnLost(status.message());
  }
}

/// It finds what it is told as soon as it runs.
absl::Status Standby::Start() {
  ASSIGN_OR_RETURN(HandoverSockets sockets, MakeHandoverSockets());
  RETURN_IF_ERROR(SendHandover(sockets.launcher.get(), options_.handover, listeners_));
  RETURN_IF_ERROR(SendRecord(sockets.launcher.get(), latest_, options_.job));
  std::vector<std::string> command = options_.command;
  command.insert(command.begin() + 1, kStandbyOption);
  ASSIGN_OR_RETURN(pid_, SpawnDetached({.path = options_.path,
                                        .command = std::move(command),
                                        .environment = OwnEnvironment(),
                                        .descriptors = {{sockets.standby.get(), kStandbySocket}}}));
  spared_ = std::make_unique<SparedChild>(pid_);
  started_at_ = MonoNow();
  socket_ = std::move(sockets.launcher);
  loop_.Watch(socket_.get(), EPOLLRDHUP,
              [this](uint32_t) { OnLost(absl::StrCat("pid ", pid_, " has ended")); });
  return absl::OkStatus();
}

void Standby::End() {
  if (pid_ != 0) {
    loop_.Unwatch(socket_.get());
    ::kill(pid_, SIGKILL);
    killed_.push_back({pid_, std::move(spared_)});
    pid_ = 0;
  }
  socket_.reset();
  Reap();
}

/// What was killed has little to give back, but may hang in a file system: then it is left until
/// another one ends, or this process does.
void Standby::Reap() {
  for (const Killed& killed : killed_) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, killed.pid, 0)));
    pollfd end{process.get(), POLLIN, 0};
    ::poll(&end, 1, kReapWaitMs);
  }
  std::erase_if(killed_,
                [](const Killed& killed) { return ::waitpid(killed.pid, nullptr, WNOHANG) != 0; });
}

void Standby::OnLost(absl::string_view why) {
  const RestartPause::Next next =
      restart_pause_.Lost(pid_ == 0 ? Duration{} : MonoNow() - started_at_);
  End();
  if (next.is_first || next.is_persistent) {
    Log(LogLevel::kWarning,
        absl::StrCat("the standby of this launcher's coordinator: ", why,
                     next.is_first
                         ? "; another one is started"
                         : "; so did all before it for minutes. Another one is started every "
                           "minute; until one lives, the job ends with this launcher"));
  }
  retry_timer_ = loop_.At(MonoNow() + next.pause, [this] {
    retry_timer_ = 0;
    TellOfLatest();
  });
}

}  // namespace fsdprun
