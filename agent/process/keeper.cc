#include "agent/process/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "proto/worker_contract.h"

namespace fsdprun::keeper {
namespace {

constexpr size_t kReadBytes = 32u << 10;
/// Queue towards the agent. Output is not read from a worker while less than kBulkRoom is free, so
/// the queue cannot grow beyond this but for the rare reports (one per command or death), which
/// always get in.
constexpr size_t kOutgoingBytes = 512u << 10;
constexpr size_t kBulkRoom = 64u << 10;
/// Growth is told again only when the agent has nearly caught up: a slow agent gets few, large
/// steps.
constexpr size_t kGrowthBacklogBytes = 16u << 10;
constexpr size_t kOutputAfterDeathBytes = 4u << 20;
/// What a worker is said to have exited with when the kernel no longer knows.
constexpr int kUnknownExitCode = 255;
constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kShortestSweepPause = 1 * kMillisecond;
constexpr int64_t kLongestSweepPause = 100 * kMillisecond;

int64_t NowNs(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

int MakeChildSignalFd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

void SendSignal(int pidfd, int signal) {
  ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

Stream StreamOf(int index) { return index == 0 ? Stream::kStdout : Stream::kStderr; }

}  // namespace

Keeper::Worker::~Worker() {
  CloseFd(pidfd);
  CloseFd(failure_pipe);
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

int Keeper::Run() {
  for (;;) {
    Flush();
    FillPollSet();
    const int ready = ::poll(pollfds_.data(), pollfds_.size(), PollTimeoutMs());
    for (size_t i = 0; ready > 0 && i < pollfds_.size(); ++i) {
      if (pollfds_[i].revents != 0) {
        React(polled_[i], pollfds_[i].revents);
      }
    }
    for (const auto& worker : workers_) {
      ReportWorker(*worker);
    }
    Flush();  // Deaths go out before the processes of the dead are looked for.
    if (sweep_wanted_ && NowNs(CLOCK_MONOTONIC) >= next_sweep_ns_) {
      Sweep();
      Flush();
    }
    const bool nothing_left = workers_.empty() && !owes_all_gone_;
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
  const bool has_room = HasRoom(kBulkRoom);
  for (const auto& worker : workers_) {
    if (worker->IsAlive() || worker->phase == Phase::kFailed) {
      AddPoll(worker->pidfd, POLLIN, Source::kPidfd, worker.get());
    }
    AddPoll(worker->failure_pipe, POLLIN, Source::kFailurePipe, worker.get());
    for (int i = 0; i < 2; ++i) {
      const LogStream& log = worker->logs[static_cast<size_t>(i)];
      // A working file takes output at any time; without one it must pass through the agent's
      // socket.
      if (log.file_error() == 0 || has_room) {
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
  if (!sweep_wanted_) {
    return -1;
  }
  const int64_t left = next_sweep_ns_ - NowNs(CLOCK_MONOTONIC);
  return left <= 0 ? 0 : static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

void Keeper::React(const Polled& polled, short events) {
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
    case Source::kPidfd:
      NoteDeath(*polled.worker);
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
      // Half-understood orders are worse than none.
      std::fprintf(stderr,
                   "fsdp-keeper: the agent sent an order that cannot be read; ending the workers. "
                   "Install fsdprun, fsdp-agent and fsdp-keeper from one build\n");
      exit_status_ = 1;
      return LoseAgent();
    }
    rest.remove_prefix(kFrameHeaderBytes + frame.size());
    std::visit([this](const auto& c) { Apply(c); }, *command);
  }
  incoming_.erase(0, incoming_.size() - rest.size());
}

void Keeper::Apply(const SpawnCommand& command) {
  SpawnFailedReport failure{.local_rank = command.local_rank, .path = command.argv.front()};
  if (is_ending_ || FindCurrent(command.local_rank) != nullptr) {
    failure.error = is_ending_ ? ESHUTDOWN : EEXIST;
    failure.attempted = is_ending_ ? "start, while everything is being ended,"
                                   : "start a second worker in the same slot for";
    AppendReport(failure, outgoing_);
    return;
  }
  auto worker = std::make_unique<Worker>();
  worker->local_rank = command.local_rank;
  ChildFds fds;
  if (OpenStreams(*worker, command, fds, failure)) {
    worker->plan = std::make_unique<SpawnPlan>(command, fds.control_fd);
    const StartedChild child = StartChild(*worker->plan, fds);
    worker->pid = child.pid;
    worker->pidfd = child.pidfd;
    worker->failure_pipe = child.failure_pipe;
    failure.error = child.error;
    failure.attempted = "create a process for";
  }
  CloseFd(fds.stdout_fd);
  CloseFd(fds.stderr_fd);
  CloseFd(fds.control_fd);
  if (worker->pid < 0) {
    AppendReport(failure, outgoing_);
    return;
  }
  workers_.push_back(std::move(worker));
}

bool Keeper::OpenStreams(Worker& worker, const SpawnCommand& command, ChildFds& fds,
                         SpawnFailedReport& failure) {
  failure.attempted = "make the output pipes of";
  if (!command.stdout_path.empty()) {
    fds.stdout_fd = worker.logs[0].Open(command.stdout_path);
    failure.error = errno;
    if (fds.stdout_fd < 0) {
      return false;
    }
  }
  if (!command.stderr_path.empty()) {
    fds.stderr_fd = worker.logs[1].Open(command.stderr_path);
    failure.error = errno;
    if (fds.stderr_fd < 0) {
      return false;
    }
  }
  if (command.wants_control_fd) {
    fds.control_fd = worker.control.Open();
    failure.error = errno;
    failure.attempted = "make the control socket of";
    return fds.control_fd >= 0;
  }
  return true;
}

void Keeper::Apply(const SignalCommand& command) {
  for (const auto& worker : workers_) {
    const bool is_meant =
        command.local_rank == kAllRanks || command.local_rank == worker->local_rank;
    if (!is_meant || !worker->IsAlive()) {
      continue;
    }
    // Before its setsid() the worker has no group yet: then the process alone is signalled.
    if (!command.group || ::kill(-worker->pid, command.signal) != 0) {
      SendSignal(worker->pidfd, command.signal);
    }
  }
}

void Keeper::Apply(const ControlLineCommand& command) {
  Worker* worker = FindCurrent(command.local_rank);
  if (worker != nullptr && !worker->control.SendLine(command.line)) {
    AppendReport(
        NoteReport{command.local_rank,
                   "dropped a control record: the worker does not read its control socket"},
        outgoing_);
  }
}

void Keeper::Apply(const KillAllCommand&) {
  for (const auto& worker : workers_) {
    worker->is_doomed = true;
    if (worker->IsAlive()) {
      ::kill(-worker->pid, SIGKILL);
      SendSignal(worker->pidfd, SIGKILL);
    }
  }
  owes_all_gone_ = true;
  sweep_wanted_ = true;
  next_sweep_ns_ = 0;
  sweep_pause_ns_ = 0;
}

void Keeper::Apply(const ShutdownCommand&) {
  is_ending_ = true;
  Apply(KillAllCommand{});
}

void Keeper::LoseAgent() {
  CloseFd(agent_fd_);
  outgoing_.clear();
  Apply(ShutdownCommand{});
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

bool Keeper::HasRoom(size_t bytes) const {
  return agent_fd_ < 0 || outgoing_.size() + bytes <= kOutgoingBytes;
}

// --- Workers

void Keeper::ReadFailurePipe(Worker& worker) {
  if (worker.failure_pipe < 0) {
    return;  // Read already, when the death of the child was seen in the same round.
  }
  ChildFailure failure;
  const ssize_t got = ::read(worker.failure_pipe, &failure, sizeof(failure));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  CloseFd(worker.failure_pipe);
  if (got == static_cast<ssize_t>(sizeof(failure))) {
    AppendReport(Describe(failure, *worker.plan, worker.local_rank), outgoing_);
    worker.phase = Phase::kFailed;
  } else {
    ProcessInfo info;
    ReadProcess(worker.pid, info);
    AppendReport(SpawnedReport{worker.local_rank, worker.pid, info.start_time_ticks}, outgoing_);
    worker.phase = Phase::kRunning;
    owes_all_gone_ = true;
  }
  worker.plan.reset();
}

void Keeper::ReadLog(Worker& worker, int stream) {
  LogStream& log = worker.logs[static_cast<size_t>(stream)];
  if (!log.is_open() || (log.file_error() != 0 && !HasRoom(kBulkRoom))) {
    return;
  }
  const uint64_t size_before = log.size_bytes();
  const std::string_view rest = log.ReadOnce(buffer_.get(), kReadBytes);
  if (!worker.IsAlive()) {
    worker.bytes_after_death += log.size_bytes() - size_before + rest.size();
  }
  if (log.owes_degradation) {
    // What did reach the file is told first, so that the agent can put the pieces in order.
    if (log.owes_growth) {
      AppendReport(LogGrewReport{worker.local_rank, StreamOf(stream), log.size_bytes()}, outgoing_);
      log.owes_growth = false;
    }
    AppendReport(
        LogDegradedReport{worker.local_rank, StreamOf(stream), log.file_error(), log.path()},
        outgoing_);
    log.owes_degradation = false;
  }
  if (!rest.empty()) {
    AppendLogData(worker.local_rank, StreamOf(stream), rest, outgoing_);
  }
}

void Keeper::ReadControl(Worker& worker) {
  worker.control.Receive();
  std::string_view line;
  while (worker.control.TakeLine(line)) {
    AppendControlRecord(worker.local_rank, line, outgoing_);
  }
  if (worker.control.TakeOverflow() && HasRoom(kBulkRoom)) {
    AppendReport(
        NoteReport{worker.local_rank, "dropped a control record longer than " +
                                          std::to_string(contract::kMaxRecordBytes) + " bytes"},
        outgoing_);
  }
}

void Keeper::NoteDeath(Worker& worker) {
  if (worker.phase == Phase::kStarting && worker.failure_pipe >= 0) {
    ReadFailurePipe(worker);  // Says whether this is a death or a failed start.
  }
  if (worker.phase != Phase::kRunning) {
    sweep_wanted_ = true;
    next_sweep_ns_ = 0;
    return;
  }
  siginfo_t info{};
  // Not reaped yet; see Note [Who belongs to a worker].
  const int rc = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(worker.pidfd), &info,
                          WEXITED | WNOHANG | WNOWAIT);
  if (rc == 0 && info.si_pid == 0) {
    return;
  }
  worker.exit.local_rank = worker.local_rank;
  worker.exit.pid = worker.pid;
  if (rc != 0) {
    // Dead and already reaped: by whom cannot be known, nor how it ended. Its number is free again,
    // so that nothing may be sent to it.
    worker.exit.exit_code = kUnknownExitCode;
    AppendReport(NoteReport{worker.local_rank, "cannot learn how the worker ended (" +
                                                   std::string(std::strerror(errno)) +
                                                   "); taken as a failure"},
                 outgoing_);
  } else if (info.si_code == CLD_EXITED) {
    worker.exit.exit_code = info.si_status;
  } else {
    worker.exit.signal = info.si_status;
    worker.exit.dumped_core = info.si_code == CLD_DUMPED;
  }
  worker.exit.monotonic_ns = NowNs(CLOCK_MONOTONIC);
  worker.exit.wall_ns = NowNs(CLOCK_REALTIME);
  worker.phase = Phase::kDead;
  if (rc == 0) {
    ::kill(-worker.pid, SIGKILL);
  }
  sweep_wanted_ = true;
  next_sweep_ns_ = 0;
  sweep_pause_ns_ = 0;
}

void Keeper::CollectOutput(Worker& worker) {
  for (int i = 0; i < 2; ++i) {
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    // Asks the pipe afresh: it may have been filled after it was last found empty.
    do {
      ReadLog(worker, i);
    } while (log.is_open() && !log.is_drained() &&
             worker.bytes_after_death < kOutputAfterDeathBytes &&
             (log.file_error() == 0 || HasRoom(kBulkRoom)));
  }
  while (worker.control.is_open() && HasRoom(kBulkRoom)) {
    pollfd ready{.fd = worker.control.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 0) <= 0) {
      break;
    }
    ReadControl(worker);
  }
}

void Keeper::ReportWorker(Worker& worker) {
  if (worker.phase == Phase::kDead) {
    CollectOutput(worker);
  }
  const bool tells_growth = worker.phase == Phase::kDead || outgoing_.size() < kGrowthBacklogBytes;
  for (int i = 0; i < 2 && tells_growth; ++i) {
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    if (log.owes_growth) {
      AppendReport(LogGrewReport{worker.local_rank, StreamOf(i), log.size_bytes()}, outgoing_);
      log.owes_growth = false;
    }
  }
  const bool is_drained = (worker.logs[0].is_drained() && worker.logs[1].is_drained()) ||
                          worker.bytes_after_death >= kOutputAfterDeathBytes;
  if (worker.phase == Phase::kDead && is_drained) {
    if (worker.exit.signal != 0 || worker.exit.exit_code != 0) {
      const OutputTail& tail = worker.logs[1].tail();
      worker.exit.stderr_tail = tail.Text();
      worker.exit.stderr_is_cut = tail.is_cut();
    }
    AppendReport(worker.exit, outgoing_);
    worker.phase = Phase::kReported;
  }
}

Keeper::Worker* Keeper::FindCurrent(int local_rank) {
  for (const auto& worker : workers_) {
    if (worker->local_rank == local_rank && (worker->IsAlive() || worker->phase == Phase::kDead)) {
      return worker.get();
    }
  }
  return nullptr;
}

/// While something dies the pause doubles up to its limit, so that an unkillable process costs
/// nothing; in quiet times a child signal is answered at most once per longest pause.
void Keeper::ScheduleSweep(bool unfinished) {
  sweep_wanted_ = unfinished;
  sweep_pause_ns_ = unfinished
                        ? std::clamp(sweep_pause_ns_ * 2, kShortestSweepPause, kLongestSweepPause)
                        : kLongestSweepPause;
  next_sweep_ns_ = NowNs(CLOCK_MONOTONIC) + sweep_pause_ns_;
}

}  // namespace fsdprun::keeper
