// What an agent does when its keeper ends or breaks the protocol.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/keeper_client.h"
#include "agent/process/orphans.h"

namespace fsdprun {
namespace {

constexpr auto kSweepPause = std::chrono::milliseconds(2);
/// A process that survives SIGKILL for this long (blocked in the kernel) is reported and no longer
/// waited for.
constexpr auto kSweepLimit = std::chrono::seconds(2);

std::string DescribeEnd(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("the keeper was killed by signal ", WTERMSIG(status));
  }
  if (WEXITSTATUS(status) == keeper::kExitLeaseOver) {
    return "the keeper killed the workers because this process had been stopped for too long";
  }
  return absl::StrCat("the keeper exited with code ", WEXITSTATUS(status));
}

}  // namespace

/// The stream ended or is corrupt. The keeper may be dead (then its workers die by their
/// parent-death signal and their children are reparented to us) or about to exit because of the
/// closed socket.
void KeeperClient::Lose(const std::string& reason) {
  CloseSocket();
  loop_.Cancel(std::exchange(hello_timer_, 0));
  loop_.Cancel(std::exchange(lease_timer_, 0));
  lost_reason_ = reason;
  if (!reason.empty()) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  }
  const MonoTime deadline = MonoNow() + kSweepLimit;
  sweep_timer_ = loop_.At(deadline, [this] { OnEndLate(); });
  loop_.Watch(pidfd_.get(), EPOLLIN, [this, deadline](uint32_t) { OnKeeperEnd(deadline); });
}

/// The keeper can be reaped.
void KeeperClient::OnKeeperEnd(MonoTime deadline) {
  loop_.Unwatch(pidfd_.get());
  loop_.Cancel(sweep_timer_);
  int status = 0;
  const bool is_child = ::waitpid(pid_, &status, 0) == pid_;  // Ready: does not block.
  was_reaped_ = true;
  if (lost_reason_.empty()) {
    // Whose child an adopted one is knows how it ended.
    lost_reason_ = is_child ? DescribeEnd(status)
                            : "the keeper has ended; was this process stopped for too long?";
  }
  Sweep(deadline);
}

void KeeperClient::OnEndLate() {
  sweep_timer_ = 0;
  pollfd ended{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&ended, 1, 0) == 1) {
    // In time, if this process was stopped meanwhile; so what is to be killed gets its time anew.
    return OnKeeperEnd(MonoNow() + kSweepLimit);
  }
  loop_.Unwatch(pidfd_.get());
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  lost_reason_ += lost_reason_.empty() ? "the keeper closed its socket" : "";
  FinishLoss(absl::StrCat("; it (pid ", pid_, ") does not end, so its workers may be alive"));
}

/// Of an adopted keeper, as long as that is their parent, who has not given the number back.
void KeeperClient::NoteWorker(const keeper::SpawnedReport& report) {
  if (!is_adopted_) {
    return;
  }
  UniqueFd worker(static_cast<int>(::syscall(SYS_pidfd_open, report.pid, 0)));
  ProcessInfo process;
  if (worker.valid() && ReadProcess(report.pid, process) && process.parent == pid_) {
    workers_[report.local_rank] = std::move(worker);
  }
}

void KeeperClient::Sweep(MonoTime deadline) {
  sweep_timer_ = 0;
  const int left = KillOrphans(foreign_children_, log_writers_) + KillStrangers(workers_);
  if (left == 0) {
    return FinishLoss("");
  }
  if (MonoNow() >= deadline) {
    return FinishLoss(
        absl::StrCat("; ", left, " of its processes cannot be killed (blocked in the kernel?)"));
  }
  sweep_timer_ = loop_.At(MonoNow() + kSweepPause, [this, deadline] { Sweep(deadline); });
}

void KeeperClient::FinishLoss(const std::string& what_is_left) {
  if (shutting_down_) {
    if (const auto on_ended = callbacks_.on_ended) {
      on_ended();
    }
    return;
  }
  if (!callbacks_.on_lost) {
    return;
  }
  // Copies: the callback may destroy this object.
  const auto on_lost = callbacks_.on_lost;
  const std::string reason = lost_reason_ + what_is_left;
  on_lost(reason);
}

}  // namespace fsdprun
