// What an agent does for the workers of a generation: prepare, start, tell of their exits.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/local/local_agent.h"
#include "agent/process/error_file_reader.h"
#include "agent/process/output_tail.h"
#include "agent/process/worker_environment.h"
#include "base/log.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

constexpr int kTailLines = 20;
constexpr Duration kErrorFileLimit = std::chrono::seconds(1);

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// Moves an error file to where the report says that it is. If that fails it stays where it is, and
/// the report has its text all the same.
void PutInPlace(const std::string& written, const std::string& kept) {
  if (written != kept) {
    ::mkdir(FolderOf(kept).c_str(), 0777);
    ::rename(written.c_str(), kept.c_str());
  }
}

}  // namespace

void LocalAgent::Execute(const node::PrepareNode& prepare) {
  assignment_ = prepare.assignment;
  const Generation generation = assignment_.generation;
  if (options_.file_timer != nullptr) {
    options_.file_timer->Clear();  // Not when they start: they may be an earlier agent's.
  }
  std::optional<StoreEndpoint> store;
  if (prepare.reset_store) {
    const absl::StatusOr<StoreEndpoint> endpoint =
        store_.Renew(assignment_.world_size, keeper_ != nullptr ? keeper_->pidfd() : -1);
    if (!endpoint.ok()) {
      Feed(node::PrepareFailed{generation, absl::StrCat("cannot serve the workers' store: ",
                                                        endpoint.status().message())});
      return;
    }
    store = *endpoint;
    LeaveMemo();  // The next agent ends it if nobody was told of it.
  }
  GetPages(MakeWorkerPages);
  MakeAttemptFiles([this, generation, store] { Feed(node::LogsAndStoreReady{generation, store}); });
}

void LocalAgent::BeginWorkers(const RankAssignment& assignment) {
  assignment_ = assignment;
  spawned_pids_.clear();
  has_logged_.clear();
  lost_logs_.clear();
  timer_errors_.clear();
  ended_ranks_.clear();
  for (std::deque<Shown>& waiting : shown_) {
    waiting.clear();  // Of files that no other agent reads.
  }
  spawn_is_answered_ = false;
  vitals_.Begin(assignment.generation, assignment.rank_offset);
  desk_.WorkersBegan();
}

void LocalAgent::Execute(const node::SpawnWorkers& spawn) {
  BeginWorkers(spawn.assignment);
  for (int local_rank = 0; local_rank < assignment_.local_world_size; ++local_rank) {
    if (const absl::Status status = keeper_->Spawn(SpecOf(local_rank)); !status.ok()) {
      OnSpawnFailed(local_rank, std::string(status.message()));
      return;
    }
  }
}

void LocalAgent::Execute(const node::AdoptWorkers& adopt) {
  BeginWorkers(adopt.assignment);
  for (int local_rank = 0; local_rank < assignment_.local_world_size; ++local_rank) {
    SpecOf(local_rank);  // For its streams, which are followed.
  }
}

std::map<std::string, std::string> LocalAgent::EnvironmentOf(int local_rank) {
  WorkerPlace place{.rank = assignment_.rank_offset + local_rank,
                    .local_rank = local_rank,
                    .world_size = assignment_.world_size,
                    .local_world_size = assignment_.local_world_size,
                    .group_rank = assignment_.group_rank,
                    .group_world_size = assignment_.group_world_size,
                    .role_rank = assignment_.role_rank_offset + local_rank,
                    .role_world_size = assignment_.role_world_size,
                    .role_name = assignment_.role};
  if (options_.local_place.has_value()) {
    std::tie(place.local_rank, place.local_world_size) = *options_.local_place;
  }
  const WorkerSettings settings{
      .master_addr = assignment_.master_addr,
      .master_port = assignment_.master_port,
      .restart_count = assignment_.earlier_restarts + assignment_.restart_count,
      .max_restarts = assignment_.earlier_restarts + assignment_.max_restarts,
      .run_id = options_.run_id,
      .uses_agent_store = options_.uses_agent_store,
      .error_file = WrittenErrorFilePath(options_.dirs, options_.output, assignment_, local_rank),
      .generation = assignment_.generation.value(),
      .job_id = WorkerJobId(options_.run_id, assignment_.launch_id),
      .vitals_file = VitalsFileOf(local_rank),
      .progress_view = options_.draws_progress ? "terminal" : "plain",
      .signals_to_handle = options_.handled_signals,
      .has_virtual_local_rank = options_.has_virtual_local_rank,
      .omp_threads = options_.omp_threads};
  WorkerVariables variables = BuildWorkerEnvironment(options_.base_environment, place, settings);
  if (variables.defaulted_omp_threads && !std::exchange(has_warned_of_omp_, true)) {
    Log(LogLevel::kWarning,
        "OMP_NUM_THREADS is not set; each worker gets 1 to avoid oversubscribing the CPUs. Set it "
        "to tune performance");
  }
  return std::move(variables.environment);
}

std::string LocalAgent::VitalsFileOf(int local_rank) const {
  const Generation generation = assignment_.generation;
  return vitals_.HasPage(generation, local_rank) ? VitalsPath(options_.dirs, generation, local_rank)
                                                 : "";
}

/// Follows its streams, too.
WorkerSpec LocalAgent::SpecOf(int local_rank) {
  WorkerSpec spec;
  spec.local_rank = local_rank;
  spec.life = life();
  spec.argv = options_.command(local_rank);
  spec.environment = EnvironmentOf(local_rank);
  const StreamPlan stdout_plan = PlanStream(options_.output, local_rank, kOutStream);
  const StreamPlan stderr_plan = PlanStream(options_.output, local_rank, kErrorStream);
  spec.stdout_path = FollowStream(local_rank, keeper::Stream::kStdout, stdout_plan);
  spec.stderr_path = FollowStream(local_rank, keeper::Stream::kStderr, stderr_plan);
  spec.opens_stdout_late = stdout_plan.opens_late;
  spec.opens_stderr_late = stderr_plan.opens_late;
  spec.descriptor_limit = options_.descriptor_limit;
  if (!options_.worker_cpus.empty()) {
    spec.cpus = options_.worker_cpus.at(static_cast<size_t>(local_rank));
  }
  spec.reads_stdin = options_.reads_stdin(local_rank);
  return spec;
}

void LocalAgent::OnSpawned(const keeper::SpawnedReport& report) {
  if (report.life != life()) {
    return;
  }
  spawned_pids_[report.local_rank] = report.pid;
  vitals_.NoteStarted(report.local_rank, static_cast<pid_t>(report.pid));
  if (spawn_is_answered_ || static_cast<int>(spawned_pids_.size()) < assignment_.local_world_size) {
    return;
  }
  spawn_is_answered_ = true;
  node::WorkersSpawned spawned{assignment_.generation, {}};
  for (const auto& [local_rank, pid] : spawned_pids_) {
    spawned.pids.push_back(pid);
  }
  FeedInTurn([spawned] { return spawned; });
}

void LocalAgent::OnSpawnFailed(int local_rank, const std::string& what) {
  if (!std::exchange(spawn_is_answered_, true)) {
    FeedInTurn([generation = assignment_.generation, local_rank, what] {
      return node::SpawnFailed{generation, local_rank, what};
    });
  }
}

// --- Exits

/// The exit is told once the worker's error file has been read, or does not answer.
void LocalAgent::OnExited(const keeper::ExitedReport& report) {
  if (report.life != life()) {
    return;
  }
  const int local_rank = report.local_rank;
  ended_ranks_.insert(local_rank);
  vitals_.NoteEnded(local_rank);
  ExitedWorker worker{
      .report = report,
      .generation = assignment_.generation,
      .error_file = WrittenErrorFilePath(options_.dirs, options_.output, assignment_, local_rank),
      .kept_error_file = ErrorFilePath(options_.dirs, assignment_, local_rank),
      .log_path = LogPathOf(local_rank),
      .timer_error = ""};
  if (const auto it = timer_errors_.find(report.pid); it != timer_errors_.end()) {
    worker.timer_error = it->second;
  }
  if (options_.file_timer != nullptr) {
    options_.file_timer->Drop(report.pid);
  }
  const uint64_t turn = next_turn_++;
  turns_.emplace(turn, nullptr);
  if ((report.signal == 0 && report.exit_code == 0) || worker.error_file.empty()) {
    return OnErrorFile(turn, worker, ErrorFile{});
  }
  const auto give = [live = is_live_, this, turn, worker](const ErrorFile& file) {
    if (*live) {
      OnErrorFile(turn, worker, file);
    }
  };
  auto file = std::make_shared<ErrorFile>();
  files_.Run(
      [path = worker.error_file, kept = worker.kept_error_file, file] {
        *file = ErrorFile{ReadErrorFile(path), MonoNow()};
        if (file->result.problem == kErrorFileNotWritten && kept != path) {
          // An agent before this one may have put it in place.
          file->result = ReadErrorFile(kept);
        } else if (file->result.error.has_value()) {
          PutInPlace(path, kept);
        }
      },
      [give, file] { give(*file); });
  loop_.At(MonoNow() + kErrorFileLimit, [live = is_live_, this, give] {
    if (*live) {
      files_.RunFinished();  // It may be there since before the limit, if this process was stopped.
    }
    give(ErrorFile{
        .result = {.error = std::nullopt, .problem = "its file system did not answer within 1 s"}});
  });
}

void LocalAgent::OnErrorFile(uint64_t turn, const ExitedWorker& worker, const ErrorFile& file) {
  const auto it = turns_.find(turn);
  if (it == turns_.end() || it->second != nullptr) {
    return;  // The other of answer and deadline came first.
  }
  if (!file.result.problem.empty() && file.result.problem != kErrorFileNotWritten) {
    Log(LogLevel::kWarning,
        absl::StrCat("cannot use the error file ", worker.error_file, ": ", file.result.problem));
  }
  it->second = [worker, file] { return MakeReaped(worker, file); };
  FeedTurns();
}

node::Event LocalAgent::MakeReaped(const ExitedWorker& worker, const ErrorFile& file) {
  const keeper::ExitedReport& report = worker.report;
  node::WorkerReaped reaped{.generation = worker.generation};
  WorkerExit& exit = reaped.exit;
  exit.local_rank = report.local_rank;
  exit.pid = report.pid;
  exit.exit_code = report.exit_code;
  exit.signal = report.signal;
  exit.dumped_core = report.dumped_core;
  const MonoTime now = MonoNow();
  reaped.age = std::max(now - MonoTime(Duration(report.seen_ns)), Duration::zero());
  exit.exited_unix_ns = UnixNow() - reaped.age.count();
  exit.log_path = worker.log_path;
  if (!exit.Succeeded()) {
    if (const std::optional<WorkerError>& error = file.result.error) {
      exit.error_message = error->message;
      exit.traceback = error->stack;
      exit.error_json = error->json;
      exit.error_timestamp_s = error->timestamp_s;
      if (exit.log_path.empty()) {  // The report finds the error file beside it.
        exit.log_path = FolderOf(worker.kept_error_file) + "/";
      }
      if (error->age.has_value()) {
        reaped.error_age = *error->age + (now - file.read_at);
      }
    }
    if (exit.error_message.empty()) {
      exit.error_message = worker.timer_error;
    }
    exit.stderr_tail = keeper::LastLines(report.stderr_tail, kTailLines, report.stderr_is_cut);
  }
  return reaped;
}

/// The worker's death is then a failure like any other. torchrun's agent ends itself, too.
void LocalAgent::OnTimerExpired(const ExpiredTimer& timer) {
  const auto late_ms = std::chrono::round<std::chrono::milliseconds>(timer.late).count();
  const std::string what =
      absl::StrCat(contract::kWatchdogError, ": timer '", absl::Utf8SafeCHexEscape(timer.scope),
                   "' of process ", timer.process.pid, " expired ", late_ms, " ms ago");
  if (timer.signal == 0 || keeper_ == nullptr || !keeper_->is_alive()) {
    Log(LogLevel::kWarning, absl::StrCat(what, "; no signal is sent to it"));
  } else {
    timer_errors_[timer.process.pid] =
        absl::StrCat(what, ", and it was sent signal ", timer.signal);
    Log(LogLevel::kWarning, absl::StrCat(what, "; sending it signal ", timer.signal));
    keeper_->SignalProcess(timer.process, timer.signal);
  }
  if (hooks_.on_timer_expired) {
    hooks_.on_timer_expired(timer);
  }
}

}  // namespace fsdprun
