#include "agent/local/local_agent.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/error_file_reader.h"
#include "agent/process/orphans.h"
#include "agent/process/output_tail.h"
#include "agent/process/worker_environment.h"
#include "base/error_text.h"
#include "base/log.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

constexpr int kTailLines = 20;
constexpr Duration kOrphanSweepPause = std::chrono::milliseconds(10);
/// No process of a job may outlive its launcher by more than 1 s.
constexpr Duration kKeeperEndTimeout = std::chrono::milliseconds(200);

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool IsPermanent(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsNotFound(status) ||
         absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
}

/// The link's error, with what to do next.
std::string Explain(const absl::Status& status) {
  std::string text(status.message());
  if (absl::IsUnauthenticated(status)) {
    absl::StrAppend(&text, "; set FSDPRUN_TOKEN (or --token-file) to the same value on all nodes");
  } else if (absl::IsNotFound(status)) {
    absl::StrAppend(&text, "; give all nodes the same --rdzv-id and --rdzv-endpoint");
  } else if (absl::IsUnimplemented(status)) {
    absl::StrAppend(&text, "; is another program listening at this --rdzv-endpoint?");
  } else {
    absl::StrAppend(&text, "; install the same version of fsdprun on all nodes");
  }
  return text;
}

}  // namespace

LocalAgent::LocalAgent(EventLoop& loop, Options options, Hooks hooks, CoordinatorLink& link,
                       WorkerStore& store)
    : loop_(loop),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      link_(link),
      store_(store),
      machine_(options_.spec),
      output_(hooks_.sink) {}

LocalAgent::~LocalAgent() {
  *is_live_ = false;
  loop_.Cancel(wake_timer_);
}

void LocalAgent::Start() {
  foreign_children_ = ListChildren();
  CoordinatorLink::Callbacks callbacks;
  callbacks.on_up = [this] { Feed(node::StreamUp{}); };
  callbacks.on_message = [this](const ToAgent& message) {
    if (std::holds_alternative<AdmitAgent>(message.message)) {
      was_admitted_ = true;
      has_warned_of_silence_ = false;
    }
    const auto* reject = std::get_if<RejectAgent>(&message.message);
    was_released_ |= std::holds_alternative<ReleaseAgent>(message.message) ||
                     (reject != nullptr && !reject->rejoin);
    Feed(message);
  };
  callbacks.on_lost = [this](const LinkLoss& loss) { OnLinkLost(loss); };
  link_.SetCallbacks(std::move(callbacks));
  Feed(node::Boot{});
}

void LocalAgent::OperatorSignal(int signal) {
  was_released_ = true;
  Feed(node::OperatorSignal{signal});
}

bool LocalAgent::ResumeOutput() { return output_.Pump(); }

void LocalAgent::DrainOutput() { output_.Drain(); }

// An action may produce an event synchronously; that event is queued until the current actions have
// been executed.
void LocalAgent::Feed(node::Event event) {
  events_.push_back(std::move(event));
  if (is_feeding_) {
    return;
  }
  is_feeding_ = true;
  while (!events_.empty() && !has_ended_) {
    const node::Event next = std::move(events_.front());
    events_.pop_front();
    const node::Effects effects = machine_.Step(next, MonoNow());
    loop_.Cancel(wake_timer_);
    if (effects.wake_at != MonoTime::max()) {
      wake_timer_ = loop_.At(effects.wake_at, [this] { Feed(node::TimerDue{}); });
    }
    for (const node::Action& action : effects.actions) {
      std::visit([this](const auto& what) { Execute(what); }, action);
    }
  }
  is_feeding_ = false;
}

void LocalAgent::RunAfter(Duration delay, std::function<void()> action) {
  if (delay <= Duration::zero()) {
    action();
    return;
  }
  loop_.At(MonoNow() + delay, [live = is_live_, this, action = std::move(action)] {
    if (*live && !has_ended_) {
      action();
    }
  });
}

// --- Link

void LocalAgent::Execute(const node::Send& send) { link_.Send(send.message); }

void LocalAgent::Execute(const node::ReconnectStream& reconnect) {
  RunAfter(reconnect.delay, [this] { link_.Open(); });
}

void LocalAgent::OnLinkLost(const LinkLoss& loss) {
  const absl::Status& status = loss.status;
  last_link_error_ = status;
  if (!loss.nothing_listens) {
    WarnOfSilence();
  }
  if (IsPermanent(status)) {
    was_released_ = true;
    Feed(ToAgent{options_.spec.node.incarnation, Generation(), RejectAgent{Explain(status)}});
    return;
  }
  Feed(node::StreamLost{std::string(status.message()), loss.nothing_listens});
}

/// Not about the break itself, which most often is made good at once, but about the first attempt
/// that fails.
void LocalAgent::WarnOfSilence() {
  const std::optional<MonoTime> deadline = machine_.coordinator_deadline();
  if (!deadline.has_value() || std::exchange(has_warned_of_silence_, true)) {
    return;
  }
  const auto left = std::chrono::round<std::chrono::seconds>(*deadline - MonoNow());
  Log(LogLevel::kWarning,
      absl::StrCat("no answer from the coordinator at ", options_.spec.coordinator_endpoint, " (",
                   last_link_error_.message(),
                   "); the workers of this node go on, and are ended if it does not answer within ",
                   left.count(), " s"));
}

// --- Keeper

void LocalAgent::Execute(const node::StartKeeper& start) {
  RunAfter(start.delay, [this] { OpenKeeper(); });
}

void LocalAgent::OpenKeeper() {
  keeper_ = std::make_unique<KeeperClient>(loop_, MakeKeeperCallbacks());
  if (const absl::Status status = keeper_->Start(options_.keeper_path); !status.ok()) {
    Feed(node::KeeperLost{std::string(status.message())});
  }
}

KeeperCallbacks LocalAgent::MakeKeeperCallbacks() {
  KeeperCallbacks callbacks;
  callbacks.on_hello = [this](const keeper::HelloReport&) { Feed(node::KeeperReady{}); };
  callbacks.on_spawned = [this](const keeper::SpawnedReport& report) { OnSpawned(report); };
  callbacks.on_spawn_failed = [this](const keeper::SpawnFailedReport& report) {
    OnSpawnFailed(report.local_rank, absl::StrCat("cannot ", report.attempted, " ", report.path,
                                                  ": ", ErrorText(report.error)));
  };
  callbacks.on_exited = [this](const keeper::ExitedReport& report) { OnExited(report); };
  callbacks.on_log_grew = [this](const keeper::LogGrewReport& report) {
    output_.Grew(report.local_rank, report.stream, report.size_bytes);
  };
  callbacks.on_log_data = [this](const keeper::LogDataReport& report) {
    output_.Data(report.local_rank, report.stream, report.data);
  };
  callbacks.on_log_degraded = [this](const keeper::LogDegradedReport& report) {
    WarnOfLogs(absl::StrCat("write ", report.path, ": ", ErrorText(report.error)));
  };
  callbacks.on_control_record = [this](const keeper::ControlRecordReport& report) {
    OnControlRecord(report);
  };
  callbacks.on_note = [](const keeper::NoteReport& report) {
    Log(LogLevel::kWarning,
        report.local_rank == keeper::kAllRanks
            ? report.text
            : absl::StrCat("worker with local rank ", report.local_rank, ": ", report.text));
  };
  callbacks.on_all_gone = [this] { Feed(node::AllWorkersGone{assignment_.generation}); };
  callbacks.on_lost = [this](const std::string& reason) { Feed(node::KeeperLost{reason}); };
  callbacks.on_ended = [this] { FinishExit(); };
  return callbacks;
}

// --- Workers

std::string LocalAgent::WorkerDir(int local_rank) const {
  return absl::StrCat(options_.run_dir, "/attempt_", assignment_.generation.value() - 1, "/",
                      local_rank);
}

void LocalAgent::Execute(const node::PrepareNode& prepare) {
  assignment_ = prepare.assignment;
  const Generation generation = assignment_.generation;
  for (int local_rank = 0; local_rank < assignment_.local_world_size; ++local_rank) {
    std::error_code error;
    std::filesystem::create_directories(WorkerDir(local_rank), error);
    if (error) {
      // The keeper then forwards the output without a file, as it does on a full disk.
      WarnOfLogs(
          absl::StrCat("make the log directory ", WorkerDir(local_rank), ": ", error.message()));
    }
  }
  std::optional<StoreEndpoint> store;
  if (prepare.reset_store) {
    const absl::StatusOr<StoreEndpoint> endpoint = store_.Renew();
    if (!endpoint.ok()) {
      Feed(node::PrepareFailed{generation, absl::StrCat("cannot serve the workers' store: ",
                                                        endpoint.status().message())});
      return;
    }
    store = *endpoint;
  }
  Feed(node::LogsAndStoreReady{generation, store});
}

void LocalAgent::WarnOfLogs(const std::string& what) {
  Log(std::exchange(has_warned_of_logs_, true) ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat("cannot ", what,
                   "; output that cannot be logged to a file is only shown here (warned once)"));
}

void LocalAgent::Execute(const node::SpawnWorkers& spawn) {
  assignment_ = spawn.assignment;
  spawned_pids_.clear();
  spawn_is_answered_ = false;
  for (int local_rank = 0; local_rank < assignment_.local_world_size; ++local_rank) {
    if (const absl::Status status = SpawnOne(local_rank); !status.ok()) {
      OnSpawnFailed(local_rank, std::string(status.message()));
      return;
    }
  }
}

std::map<std::string, std::string> LocalAgent::EnvironmentOf(int local_rank,
                                                             const std::string& error_file) {
  const WorkerPlace place{.rank = assignment_.rank_offset + local_rank,
                          .local_rank = local_rank,
                          .world_size = assignment_.world_size,
                          .local_world_size = assignment_.local_world_size,
                          .group_rank = assignment_.group_rank,
                          .group_world_size = assignment_.group_world_size,
                          .role_rank = assignment_.role_rank_offset + local_rank,
                          .role_world_size = assignment_.role_world_size,
                          .role_name = assignment_.role};
  const WorkerSettings settings{.master_addr = assignment_.master_addr,
                                .master_port = assignment_.master_port,
                                .restart_count = assignment_.restart_count,
                                .max_restarts = assignment_.max_restarts,
                                .run_id = options_.run_id,
                                .error_file = error_file,
                                .generation = assignment_.generation.value(),
                                .job_id = WorkerJobId(options_.run_id, assignment_.launch_id),
                                .progress_view = options_.draws_progress ? "terminal" : "plain",
                                .signals_to_handle = options_.handled_signals};
  WorkerVariables variables = BuildWorkerEnvironment(options_.base_environment, place, settings);
  if (variables.defaulted_omp_threads && !std::exchange(has_warned_of_omp_, true)) {
    Log(LogLevel::kWarning,
        "OMP_NUM_THREADS is not set; each worker gets 1 to avoid oversubscribing the CPUs. Set it "
        "to tune performance");
  }
  return std::move(variables.environment);
}

absl::Status LocalAgent::SpawnOne(int local_rank) {
  const std::string directory = WorkerDir(local_rank);
  WorkerSpec spec;
  spec.local_rank = local_rank;
  spec.argv = options_.command(local_rank);
  spec.environment = EnvironmentOf(local_rank, directory + "/error.json");
  spec.stdout_path = directory + "/stdout.log";
  spec.stderr_path = directory + "/stderr.log";
  output_.Follow(local_rank, keeper::Stream::kStdout, spec.stdout_path);
  output_.Follow(local_rank, keeper::Stream::kStderr, spec.stderr_path);
  return keeper_->Spawn(spec);
}

void LocalAgent::OnSpawned(const keeper::SpawnedReport& report) {
  spawned_pids_[report.local_rank] = report.pid;
  if (spawn_is_answered_ || static_cast<int>(spawned_pids_.size()) < assignment_.local_world_size) {
    return;
  }
  spawn_is_answered_ = true;
  node::WorkersSpawned spawned{assignment_.generation, {}};
  for (const auto& [local_rank, pid] : spawned_pids_) {
    spawned.pids.push_back(pid);
  }
  Feed(std::move(spawned));
}

void LocalAgent::OnSpawnFailed(int local_rank, const std::string& what) {
  if (!std::exchange(spawn_is_answered_, true)) {
    Feed(node::SpawnFailed{assignment_.generation, local_rank, what});
  }
}

void LocalAgent::OnExited(const keeper::ExitedReport& report) {
  const std::string directory = WorkerDir(report.local_rank);
  WorkerExit exit;
  exit.local_rank = report.local_rank;
  exit.pid = report.pid;
  exit.exit_code = report.exit_code;
  exit.signal = report.signal;
  exit.dumped_core = report.dumped_core;
  const Duration age = std::max(MonoNow() - MonoTime(Duration(report.seen_ns)), Duration::zero());
  exit.exited_unix_ns = UnixNow() - age.count();
  exit.log_path = directory + "/stderr.log";
  std::optional<Duration> error_age;
  if (!exit.Succeeded()) {
    const std::string error_path = directory + "/error.json";
    std::error_code ignored;
    if (const ErrorFileResult result = ReadErrorFile(error_path); result.error.has_value()) {
      exit.error_message = result.error->message;
      exit.traceback = result.error->stack;
      exit.error_json = result.error->json;
      error_age = result.error->age;
    } else if (std::filesystem::exists(error_path, ignored)) {
      Log(LogLevel::kWarning,
          absl::StrCat("cannot use the error file ", error_path, ": ", result.problem));
    }
    exit.stderr_tail = keeper::LastLines(report.stderr_tail, kTailLines, report.stderr_is_cut);
  }
  Feed(node::WorkerReaped{assignment_.generation, std::move(exit), age, error_age});
}

void LocalAgent::OnControlRecord(const keeper::ControlRecordReport& report) {
  const nlohmann::json record =
      nlohmann::json::parse(report.line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() ||
      record.value("type", nlohmann::json()) != std::string(contract::kRecordProgress)) {
    return;
  }
  const auto number = [&record](const char* key) {
    const auto it = record.find(key);
    return it != record.end() && it->is_number_integer() ? it->get<int64_t>() : int64_t{-1};
  };
  Progress progress{.step = number("step"), .total = number("total")};
  if (const auto it = record.find("text"); it != record.end() && it->is_string()) {
    progress.text = it->get<std::string>().substr(0, 1024);
  }
  if (assignment_.rank_offset + report.local_rank == 0 && hooks_.on_progress) {
    hooks_.on_progress(progress);
  }
  Feed(node::WorkerProgress{assignment_.generation, report.local_rank, std::move(progress)});
}

// --- Stopping

void LocalAgent::Execute(const node::SignalWorkers& signal) {
  if (keeper_ == nullptr || !keeper_->is_alive()) {
    return;
  }
  const auto grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(signal.grace).count();
  const std::string stop = absl::StrCat("{\"v\":", contract::kControlVersion,
                                        ",\"type\":\"stop\",\"grace_ms\":", grace_ms, "}");
  for (const auto& [local_rank, pid] : spawned_pids_) {
    keeper_->SendControl(local_rank, stop);
  }
  keeper_->Signal(keeper::kAllRanks, signal.signal, /*group=*/true);
  keeper_->Signal(keeper::kAllRanks, SIGCONT, /*group=*/true);
}

void LocalAgent::Execute(const node::KillWorkers& kill) {
  if (keeper_ != nullptr && keeper_->is_alive()) {
    keeper_->KillAll();
  } else {
    SweepOrphans(kill.generation);
  }
}

void LocalAgent::Execute(const node::KillOrphans& kill) { SweepOrphans(kill.generation); }

void LocalAgent::SweepOrphans(Generation generation) {
  const bool is_sweeping = swept_generation_.has_value();
  swept_generation_ = generation;
  if (!is_sweeping) {
    SweepOnce();
  }
}

void LocalAgent::SweepOnce() {
  std::set<pid_t> spared = foreign_children_;
  if (keeper_ != nullptr && keeper_->is_alive()) {
    spared.insert(keeper_->pid());  // A new keeper may start before all orphans are gone.
  }
  if (fsdprun::KillOrphans(spared) == 0) {
    const Generation generation = *std::exchange(swept_generation_, std::nullopt);
    Feed(node::AllWorkersGone{generation});
    return;
  }
  RunAfter(kOrphanSweepPause, [this] { SweepOnce(); });
}

// Waits for the keeper to exit: a process that goes on (fsdp-agent) would otherwise collect one
// zombie per incarnation, and would later treat the old keeper's processes as foreign ones.
void LocalAgent::Execute(const node::Exit& exit) {
  has_ended_ = true;
  loop_.Cancel(wake_timer_);
  exit_ = exit;
  if (keeper_ == nullptr || keeper_->has_ended()) {
    FinishExit();
    return;
  }
  keeper_->Shutdown();
  wake_timer_ = loop_.At(MonoNow() + kKeeperEndTimeout, [this] { FinishExit(); });
}

void LocalAgent::FinishExit() {
  if (const std::optional<node::Exit> exit = std::exchange(exit_, std::nullopt)) {
    loop_.Cancel(wake_timer_);
    hooks_.on_exit(exit->code, exit->message);
  }
}

}  // namespace fsdprun
