#include "agent/process/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace fsdprun::keeper {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

int MakeChildSignalFd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

}  // namespace

Keeper::Worker::~Worker() {
  CloseChildFds();
  CloseFd(pidfd);
  CloseFd(failure_pipe);
}

void Keeper::Worker::CloseChildFds() {
  CloseFd(child_fds.stdout_fd);
  CloseFd(child_fds.stderr_fd);
  CloseFd(child_fds.control_fd);
}

Keeper::Keeper(int agent_fd, const NamedSocket& named)
    : agent_fd_(agent_fd),
      named_(named),
      child_signal_fd_(MakeChildSignalFd()),
      self_(::getpid()),
      buffer_(std::make_unique<char[]>(kReadBytes)) {
  ::fcntl(agent_fd_, F_SETFL, O_NONBLOCK);
  processes_.reserve(1024);
  AppendReport(HelloReport{.pid = self_}, outgoing_);
}

Keeper::~Keeper() {
  CloseFd(agent_fd_);
  CloseFd(named_.listener);
  CloseFd(owner_);
  for (Visitor& visitor : visitors_) {
    CloseFd(visitor.fd);
  }
  CloseFd(child_signal_fd_);
}

int64_t Keeper::NowNs(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

int Keeper::Run() {
  for (;;) {
    Flush();
    log_writer_.Flush();
    FillPollSet();
    const int ready = ::poll(pollfds_.data(), pollfds_.size(), PollTimeoutMs());
    for (size_t i = 0; ready > 0 && i < pollfds_.size(); ++i) {
      if (pollfds_[i].revents != 0) {
        HandlePoll(polled_[i], pollfds_[i]);
      }
    }
    for (const auto& worker : workers_) {
      ReportWorker(*worker);
    }
    log_writer_.Flush();
    CheckLogWriter();
    CheckAgent();
    Flush();  // Report deaths before scanning for the processes that dead workers left.
    if (sweep_wanted_ && NowNs(CLOCK_MONOTONIC) >= next_sweep_ns_) {
      Sweep();
      Flush();
    }
    const bool nothing_left = workers_.empty() && !all_gone_pending_;
    if (is_ending_ && nothing_left && (agent_fd_ < 0 || outgoing_.empty())) {
      return exit_status_;
    }
  }
}

void Keeper::FillPollSet() {
  pollfds_.clear();
  polled_.clear();
  AddPoll(agent_fd_, static_cast<short>(POLLIN | (outgoing_.empty() ? 0 : POLLOUT)), Source::kAgent,
          nullptr);
  if (accept_again_ns_ == 0 || NowNs(CLOCK_MONOTONIC) >= accept_again_ns_) {
    accept_again_ns_ = 0;
    AddPoll(named_.listener, POLLIN, Source::kNamedSocket, nullptr);
  }
  for (const Visitor& visitor : visitors_) {
    AddPoll(visitor.fd, POLLIN, Source::kVisitor, nullptr);
  }
  AddPoll(child_signal_fd_, POLLIN, Source::kChildSignal, nullptr);
  AddPoll(log_writer_.fd(),
          static_cast<short>(POLLIN | (log_writer_.wants_to_send() ? POLLOUT : 0)),
          Source::kLogWriter, nullptr);
  for (const LogWriter::Abandoned& process : log_writer_.abandoned()) {
    AddPoll(process.pidfd, POLLIN, Source::kAbandonedLogWriter, nullptr);
  }
  const bool has_room = HasBulkRoom();
  for (const auto& worker : workers_) {
    if (worker->IsAlive() || worker->phase == Phase::kFailed) {
      AddPoll(worker->pidfd, POLLIN, Source::kPidfd, worker.get());
    }
    AddPoll(worker->failure_pipe, POLLIN, Source::kFailurePipe, worker.get());
    for (int i = 0; i < 2; ++i) {
      const LogStream& log = worker->logs[static_cast<size_t>(i)];
      if (CanRead(log)) {
        AddPoll(log.pipe(), POLLIN, i == 0 ? Source::kStdout : Source::kStderr, worker.get());
      }
    }
    const int write = worker->control.wants_to_write() ? POLLOUT : 0;
    if (has_room || write != 0) {
      AddPoll(worker->control.fd(), static_cast<short>((has_room ? POLLIN : 0) | write),
              Source::kControl, worker.get());
    }
  }
}

void Keeper::AddPoll(int fd, short events, Source source, Worker* worker) {
  if (fd >= 0) {
    pollfds_.push_back({.fd = fd, .events = events, .revents = 0});
    polled_.push_back({source, worker});
  }
}

int Keeper::PollTimeoutMs() const {
  const int64_t wake_at = std::min({sweep_wanted_ ? next_sweep_ns_ : LogQueue::kNever,
                                    log_writer_.DeadlineNs(), ReportDeadlineNs(), LogEndNs(),
                                    agent_fd_ >= 0 ? lease_.NextLookNs() : Lease::kNever,
                                    accept_again_ns_ > 0 ? accept_again_ns_ : LogQueue::kNever,
                                    await_until_ns_, VisitorDeadlineNs()});
  if (wake_at == LogQueue::kNever) {
    return -1;
  }
  const int64_t left = wake_at - NowNs(CLOCK_MONOTONIC);
  return left <= 0 ? 0 : static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

void Keeper::HandlePoll(const Polled& polled, const pollfd& ready) {
  const short events = ready.revents;
  switch (polled.source) {
    case Source::kAgent:
      if (agent_fd_ >= 0 && (events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        ReceiveCommands();
      }
      return;
    case Source::kNamedSocket:
      return AcceptVisitors();
    case Source::kVisitor:
      return HearVisitor(ready.fd);
    case Source::kChildSignal: {
      signalfd_siginfo ignored;
      while (::read(child_signal_fd_, &ignored, sizeof(ignored)) > 0) {
      }
      sweep_wanted_ = true;
      return;
    }
    case Source::kLogWriter:
      ReceiveLogAnswers();
      return;
    case Source::kAbandonedLogWriter:
      return;  // See CheckLogWriter().
    case Source::kPidfd:
      OnWorkerDeath(*polled.worker);
      return;
    case Source::kFailurePipe:
      ReadFailurePipe(*polled.worker);
      return;
    case Source::kStdout:
      ReadLog(*polled.worker, 0);
      return;
    case Source::kStderr:
      ReadLog(*polled.worker, 1);
      return;
    case Source::kControl:
      if ((events & POLLOUT) != 0) {
        polled.worker->control.Flush();
      }
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        ReadControl(*polled.worker);
      }
      return;
  }
}

}  // namespace fsdprun::keeper
