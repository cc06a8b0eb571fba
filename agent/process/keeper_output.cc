// What becomes of the workers' output: to the log writer, or to the agent. See Note [Log writer].
#include <poll.h>

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
constexpr char kHang[] = "the file system did not answer within 1 s";

Stream StreamOf(int index) { return index == 0 ? Stream::kStdout : Stream::kStderr; }

}  // namespace

// --- Log files

void Keeper::BeginLogs(Worker& worker, const SpawnCommand& command) {
  int error = 0;
  if (!log_writer_.is_running()) {
    error = log_writer_.Start();
    if (error == 0) {
      AppendReport(LogWriterReport{.pid = log_writer_.pid()}, outgoing_);
    }
  }
  for (int i = 0; i < 2; ++i) {
    const std::string& path = i == 0 ? command.stdout_path : command.stderr_path;
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    if (!path.empty()) {
      log.BeginFile(path, error == 0 ? log_writer_.Open(path) : 0);
    }
    if (!path.empty() && error != 0) {
      log.ForgetRequests();
      DegradeLog(worker, i, error,
                 std::string("the log writer cannot be started: ") + std::strerror(error));
    }
  }
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
    AppendLogData(worker.local_rank, StreamOf(stream), answer.rest, outgoing_);
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
    AppendReport(LogGrewReport{worker.local_rank, StreamOf(stream), log.size_bytes()}, outgoing_);
    log.growth_pending = false;
  }
  AppendReport(LogDegradedReport{worker.local_rank, StreamOf(stream), log.file_error(), log.path(),
                                 log.degradation()},
               outgoing_);
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

void Keeper::CheckLogWriter() {
  const bool is_awaited =
      std::any_of(workers_.begin(), workers_.end(), [](const std::unique_ptr<Worker>& worker) {
        const bool waits = worker->phase == Phase::kOpening || worker->phase == Phase::kDead;
        return waits && !worker->IsSettled();
      });
  const int64_t now = NowNs(CLOCK_MONOTONIC);
  log_writer_.Observe(is_awaited, now);
  if (log_writer_.IsHung(now)) {
    log_writer_.Abandon();
    DegradeAllLogs(ETIMEDOUT, kHang);
  }
}

// --- Output

/// The log writer's queue has room or, without a file, the agent's; output that the log writer may
/// still give back comes first.
bool Keeper::CanRead(const LogStream& log) const {
  return log.has_file() ? log_writer_.HasRoom() : log.is_settled() && HasBulkRoom();
}

void Keeper::ReadLog(Worker& worker, int stream) {
  LogStream& log = worker.logs[static_cast<size_t>(stream)];
  if (!log.is_open() || !CanRead(log)) {
    return;
  }
  const std::string_view bytes = log.ReadOnce(buffer_.get(), kReadBytes);
  if (bytes.empty()) {
    return;
  }
  if (!worker.IsAlive()) {
    worker.bytes_after_death += bytes.size();
  }
  if (log.has_file()) {
    log_writer_.Write(log.file(), bytes);
    log.OnRequest();
  } else {
    AppendLogData(worker.local_rank, StreamOf(stream), bytes, outgoing_);
  }
}

void Keeper::CollectOutput(Worker& worker) {
  for (int i = 0; i < 2; ++i) {
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    // Polls the pipe again: output may have arrived after it was last found empty.
    do {
      ReadLog(worker, i);
    } while (log.is_open() && !log.is_drained() &&
             worker.bytes_after_death < kOutputAfterDeathBytes && CanRead(log));
  }
  while (worker.control.is_open() && HasBulkRoom()) {
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
  const bool reports_growth =
      worker.phase == Phase::kDead || outgoing_.size() < kGrowthBacklogBytes;
  for (int i = 0; i < 2 && reports_growth; ++i) {
    LogStream& log = worker.logs[static_cast<size_t>(i)];
    if (log.growth_pending) {
      AppendReport(LogGrewReport{worker.local_rank, StreamOf(i), log.size_bytes()}, outgoing_);
      log.growth_pending = false;
    }
  }
  const bool is_drained = (worker.logs[0].is_drained() && worker.logs[1].is_drained()) ||
                          worker.bytes_after_death >= kOutputAfterDeathBytes;
  if (worker.phase == Phase::kDead && is_drained && worker.IsSettled()) {
    if (worker.exit.signal != 0 || worker.exit.exit_code != 0) {
      const OutputTail& tail = worker.logs[1].tail();
      worker.exit.stderr_tail = tail.Text();
      worker.exit.stderr_is_cut = tail.is_cut();
    }
    AppendReport(worker.exit, outgoing_);
    worker.phase = Phase::kReported;
  }
}

}  // namespace fsdprun::keeper
