// What becomes of the workers' output: to the log writer, or to the agent. See Note [Log writer].
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "agent/process/keeper.h"
#include "proto/worker_contract.h"

namespace fsdprun::keeper {
namespace {

/// Log growth is reported again only when the agent has nearly caught up: a slow agent gets few,
/// large reports.
constexpr size_t kGrowthBacklogBytes = 16u << 10;
constexpr size_t kOutputAfterDeathBytes = 4u << 20;
/// A death is reported after this time at the latest, with what is known by then.
constexpr int64_t kReportLimitNs = 1'000'000'000;
/// Log files that have not taken a dead worker's output by then are given up: less than the agent
/// waits after SIGKILL until it takes a process for one that cannot be killed (5 s).
constexpr int64_t kLogEndLimitNs = 3'000'000'000;
constexpr char kSlow[] = "the file system did not take the last output within 3 s";
constexpr char kHang[] = "the file system did not answer within 1 s";

Stream StreamOf(int index) { return index == 0 ? Stream::kStdout : Stream::kStderr; }

}  // namespace

// --- Log files

void Keeper::BeginLogs(Worker& worker, const SpawnCommand& command) {
  worker.logs[0].SetPath(command.stdout_path);
  worker.logs[1].SetPath(command.stderr_path);
  const std::array<bool, 2> opens_late = {command.opens_stdout_late, command.opens_stderr_late};
  for (int i = 0; i < 2; ++i) {
    const auto index = static_cast<size_t>(i);
    if (worker.logs[index].is_unopened() && !opens_late[index]) {
      OpenLog(worker, i);
    }
  }
}

void Keeper::OpenLog(Worker& worker, int stream) {
  LogStream& log = worker.logs[static_cast<size_t>(stream)];
  if (!log_writer_.is_running()) {
    if (const int error = log_writer_.Start(); error != 0) {
      return DegradeLog(worker, stream, error,
                        std::string("the log writer cannot be started: ") + std::strerror(error));
    }
    Tell(LogWriterReport{.pid = log_writer_.pid()});
  }
  log.BeginFile(log_writer_.Open(log.path()));
}

void Keeper::EndLogs(Worker& worker) {
  for (const LogStream& log : worker.logs) {
    if (log.file() != 0) {
      log_writer_.Close(log.file());
    }
  }
}

void Keeper::ReceiveLogAnswers() {
  LogWriter::Answer answer;
  while (log_writer_.PeekAnswer(answer)) {
    TakeLogAnswer(answer);
    log_writer_.DropAnswer();
  }
  if (!log_writer_.is_running()) {
    DegradeAllLogs(EPIPE, "the log writer died");
  }
}

void Keeper::TakeLogAnswer(const LogWriter::Answer& answer) {
  if (answer.op == LogOp::kClose) {
    return;
  }
  for (const auto& worker : workers_) {
    for (int i = 0; i < 2; ++i) {
      if (worker->logs[static_cast<size_t>(i)].file() == answer.file) {
        return SettleLog(*worker, i, answer);
      }
    }
  }
}

void Keeper::SettleLog(Worker& worker, int stream, const LogWriter::Answer& answer) {
  LogStream& log = worker.logs[static_cast<size_t>(stream)];
  log.OnAnswer(answer.written);
  if (answer.error != 0) {
    DegradeLog(worker, stream, answer.error, std::strerror(answer.error));
  }
  if (!answer.rest.empty()) {
    AppendLogData(worker.local_rank, worker.life, StreamOf(stream), answer.rest, outgoing_);
  }
  if (worker.phase == Phase::kOpening && worker.IsSettled()) {
    Start(worker);
  }
}

/// Reports the growth of the file first, so that the agent sees the output in order.
void Keeper::DegradeLog(Worker& worker, int stream, int error, const std::string& why) {
  LogStream& log = worker.logs[static_cast<size_t>(stream)];
  if (!log.degradation().empty()) {
    return;
  }
  log.Degrade(error, why);
  if (log.growth_pending) {
    Tell(LogGrewReport{worker.local_rank, StreamOf(stream), log.size_bytes(), worker.life});
    log.growth_pending = false;
  }
  Tell(LogDegradedReport{worker.local_rank, StreamOf(stream), log.file_error(), log.path(),
                         log.degradation(), worker.life});
}

/// The log writer is gone: what it has not answered for goes to the agent.
void Keeper::DegradeAllLogs(int error, const std::string& why) {
  for (const auto& worker : workers_) {
    for (int i = 0; i < 2; ++i) {
      if (worker->logs[static_cast<size_t>(i)].has_file()) {
        DegradeLog(*worker, i, error, why);
      }
    }
  }
  LogWriter::Answer unanswered;
  while (log_writer_.PeekUnanswered(unanswered)) {
    TakeLogAnswer(unanswered);
    log_writer_.DropAnswer();
  }
}

/// A file that is opened late counts: a worker that prints little would not fill the queue for
/// hours, and what it prints is to be shown.
bool Keeper::IsLogAwaited() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const std::unique_ptr<Worker>& worker) {
    const bool waits = worker->phase == Phase::kOpening || worker->phase == Phase::kDead ||
                       worker->phase == Phase::kReported;
    return (waits && !worker->IsSettled()) || worker->logs[0].is_opening() ||
           worker->logs[1].is_opening();
  });
}

/// When the log writer must have taken all output of the dead, or LogQueue::kNever.
int64_t Keeper::LogEndNs() const {
  int64_t end = LogQueue::kNever;
  for (const auto& worker : workers_) {
    const bool is_dead = worker->phase == Phase::kDead || worker->phase == Phase::kReported;
    if (is_dead && !worker->IsSettled()) {
      end = std::min(end, worker->exit.seen_ns + kLogEndLimitNs);
    }
  }
  return end;
}

/// When the next death must be reported, or LogQueue::kNever.
int64_t Keeper::ReportDeadlineNs() const {
  int64_t deadline = LogQueue::kNever;
  for (const auto& worker : workers_) {
    if (worker->phase == Phase::kDead) {
      deadline = std::min(deadline, worker->exit.seen_ns + kReportLimitNs);
    }
  }
  return deadline;
}

void Keeper::CheckLogWriter() {
  log_writer_.ReapAbandoned();
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  log_writer_.Observe(IsLogAwaited(), now);
  if (now < log_writer_.DeadlineNs() && now < LogEndNs()) {
    return;
  }
  ReceiveLogAnswers();  // They may have come in time, if this process was stopped.
  log_writer_.Observe(IsLogAwaited(), now);
  const bool is_slow = now >= LogEndNs();
  if (is_slow || log_writer_.IsHung(now)) {
    log_writer_.Abandon();
    DegradeAllLogs(ETIMEDOUT, is_slow ? kSlow : kHang);
  }
}

// --- Output

/// The log writer's queue has room or, without a file, the agent's; output that the log writer may
/// still give back comes first.
bool Keeper::CanRead(const LogStream& log) const {
  return log.has_file() ? log_writer_.HasRoom() : log.is_settled() && HasBulkRoom();
}

void Keeper::ReadLog(Worker& worker, int stream, bool needs_room) {
  LogStream& log = worker.logs[static_cast<size_t>(stream)];
  if (!log.is_open() || (needs_room && !CanRead(log))) {
    return;
  }
  const std::string_view bytes = log.ReadOnce(buffer_.get(), kReadBytes);
  if (bytes.empty()) {
    return;
  }
  if (!worker.IsAlive()) {
    worker.bytes_after_death += bytes.size();
  }
  if (log.is_unopened()) {
    OpenLog(worker, stream);
  }
  if (log.has_file() || !log.is_settled()) {  // Output that may still come back must go first.
    log_writer_.Write(log.file(), bytes);
    log.OnRequest();
  } else {
    AppendLogData(worker.local_rank, worker.life, StreamOf(stream), bytes, outgoing_);
  }
}

void Keeper::CollectOutput(Worker& worker, bool needs_room) {
  for (int i = 0; i < 2; ++i) {
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    // Polls the pipe again: output may have arrived after it was last found empty.
    do {
      ReadLog(worker, i, needs_room);
    } while (log.is_open() && !log.is_drained() &&
             worker.bytes_after_death < kOutputAfterDeathBytes && (!needs_room || CanRead(log)));
  }
  while (worker.control.is_open() && HasBulkRoom()) {
    pollfd ready{.fd = worker.control.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 0) <= 0) {
      break;
    }
    ReadControl(worker);
  }
}

/// A death waits for what the worker wrote last, but not for long: its peers must be stopped.
void Keeper::ReportWorker(Worker& worker) {
  const bool is_overdue = worker.phase == Phase::kDead &&
                          NowNs(CLOCK_MONOTONIC) >= worker.exit.seen_ns + kReportLimitNs;
  if (is_overdue) {
    ReceiveLogAnswers();
  }
  if (worker.phase == Phase::kDead) {
    CollectOutput(worker, /*needs_room=*/!is_overdue);
  }
  const bool reports_growth =
      worker.phase == Phase::kDead || outgoing_.size() < kGrowthBacklogBytes;
  for (int i = 0; i < 2 && reports_growth; ++i) {
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    if (log.growth_pending) {
      Tell(LogGrewReport{worker.local_rank, StreamOf(i), log.size_bytes(), worker.life});
      log.growth_pending = false;
    }
  }
  const bool is_drained = (worker.logs[0].is_drained() && worker.logs[1].is_drained()) ||
                          worker.bytes_after_death >= kOutputAfterDeathBytes;
  if (worker.phase == Phase::kDead && (is_overdue || (is_drained && worker.IsSettled()))) {
    ReportExit(worker);
  }
}

void Keeper::ReportExit(Worker& worker) {
  if (worker.exit.signal != 0 || worker.exit.exit_code != 0) {
    const OutputTail& tail = worker.logs[1].tail();
    worker.exit.stderr_tail = tail.Text();
    worker.exit.stderr_is_cut = tail.is_cut();
  }
  Tell(worker.exit);
  worker.phase = Phase::kReported;
  for (LogStream& log : worker.logs) {
    log.Close();  // What a descendant writes now must not delay the end for ever.
  }
}

}  // namespace fsdprun::keeper
