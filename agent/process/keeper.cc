#include "agent/process/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace fsdprun::keeper {
namespace {

/// Capacity of the queue towards the agent. Output is not read from a worker while less than
/// kBulkRoom is free; only the rare reports (one per command or death), which are always queued,
/// and what a lost log writer leaves (at most LogQueue::kMaxBytes) can exceed it.
constexpr size_t kOutgoingBytes = 512u << 10;
constexpr size_t kBulkRoom = 64u << 10;
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

Keeper::Keeper(int agent_fd)
    : agent_fd_(agent_fd),
      child_signal_fd_(MakeChildSignalFd()),
      self_(::getpid()),
      buffer_(std::make_unique<char[]>(kReadBytes)) {
  ::fcntl(agent_fd_, F_SETFL, O_NONBLOCK);
  outgoing_.reserve(kOutgoingBytes);
  processes_.reserve(1024);
  AppendReport(HelloReport{.pid = self_}, outgoing_);
}

Keeper::~Keeper() {
  CloseFd(agent_fd_);
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
        HandlePoll(polled_[i], pollfds_[i].revents);
      }
    }
    for (const auto& worker : workers_) {
      ReportWorker(*worker);
    }
    log_writer_.Flush();
    CheckLogWriter();
    if (agent_fd_ >= 0 && lease_.Observe(NowNs(CLOCK_MONOTONIC))) {
      EndLease();
    }
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
                                    agent_fd_ >= 0 ? lease_.NextLookNs() : Lease::kNever});
  if (wake_at == LogQueue::kNever) {
    return -1;
  }
  const int64_t left = wake_at - NowNs(CLOCK_MONOTONIC);
  return left <= 0 ? 0 : static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

void Keeper::HandlePoll(const Polled& polled, short events) {
  switch (polled.source) {
    case Source::kAgent:
      if (agent_fd_ >= 0 && (events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        ReceiveCommands();
      }
      return;
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

// --- Agent

void Keeper::ReceiveCommands() {
  const ssize_t got = ::recv(agent_fd_, buffer_.get(), kReadBytes, MSG_DONTWAIT);
  if (got <= 0) {
    const bool is_transient = got < 0 && (errno == EAGAIN || errno == EINTR);
    return is_transient ? void() : LoseAgent();
  }
  lease_.Renew(NowNs(CLOCK_MONOTONIC));
  incoming_.append(buffer_.get(), static_cast<size_t>(got));
  std::string_view rest = incoming_;
  std::string_view frame;
  while (agent_fd_ >= 0) {
    const FrameState state = NextFrame(rest, kMaxCommandBytes, frame);
    if (state == FrameState::kIncomplete) {
      break;
    }
    const auto command = state == FrameState::kComplete ? DecodeCommand(frame) : std::nullopt;
    if (!command) {
      // Acting on a partly understood command is worse than stopping.
      Say("fsdp-keeper: cannot decode a command of the agent; killing the workers. Install "
          "fsdprun, "
          "fsdp-agent and fsdp-keeper from one build\n");
      exit_status_ = 1;
      return LoseAgent();
    }
    rest.remove_prefix(kFrameHeaderBytes + frame.size());
    std::visit([this](const auto& c) { Apply(c); }, *command);
  }
  incoming_.erase(0, incoming_.size() - rest.size());
}

void Keeper::LoseAgent() {
  was_abandoned_ = was_abandoned_ || !is_ending_;
  CloseFd(agent_fd_);
  outgoing_.clear();
  Apply(ShutdownCommand{});
}

/// The agent is stopped: its coordinator may have replaced this node, so the workers must go.
void Keeper::EndLease() {
  Say("fsdp-keeper: the launcher or agent has been stopped for too long; killing the workers of "
      "this node\n");
  exit_status_ = kExitLeaseOver;
  LoseAgent();
}

/// Unless standard error is full: the workers must be killed whether or not anybody reads.
void Keeper::Say(std::string_view line) {
  pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  }
}

void Keeper::Flush() {
  if (agent_fd_ < 0) {
    outgoing_.clear();
    return;
  }
  size_t sent = 0;
  while (sent < outgoing_.size()) {
    const ssize_t n = ::send(agent_fd_, outgoing_.data() + sent, outgoing_.size() - sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        return LoseAgent();
      }
      break;
    }
    sent += static_cast<size_t>(n);
  }
  outgoing_.erase(0, sent);
}

bool Keeper::HasBulkRoom() const {
  return agent_fd_ < 0 || outgoing_.size() + kBulkRoom <= kOutgoingBytes;
}

}  // namespace fsdprun::keeper
