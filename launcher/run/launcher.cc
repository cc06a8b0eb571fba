#include "launcher/run/launcher.h"

#include <sys/random.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "agent/local/file_thread.h"
#include "agent/node/clocks.h"
#include "agent/process/keeper_client.h"
#include "base/check.h"
#include "base/descriptor_limit.h"
#include "base/status_macros.h"
#include "launcher/cli/worker_command.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/job_token.h"
#include "launcher/report/failure_hint.h"
#include "launcher/run/job_end.h"
#include "launcher/run/machine.h"
#include "launcher/run/own_failure.h"
#include "launcher/run/worker_cpus.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

/// To reach the coordinator, before it is given up.
constexpr int kAttemptsInGrace = 3;
constexpr Duration kWaitNoticeInterval = std::chrono::seconds(5);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kConsoleDrainTimeout = std::chrono::seconds(60);
/// How long a launcher that cannot run the program looks for the coordinator, to say so.
constexpr Duration kTellTimeout = std::chrono::seconds(60);
/// How often a coordinator may turn out to have another run id.
constexpr int kMaxTimesFoundAgain = 3;
/// How long a file system or a server that hangs may delay the exit.
constexpr Duration kLeaveDirectoryTimeout = std::chrono::seconds(2);
constexpr Duration kInterruptedDrainTimeout = std::chrono::seconds(2);

uint64_t RandomNonZero() {
  uint64_t number = 0;
  while (number == 0) {
    FSDPRUN_CHECK(::getrandom(&number, sizeof(number), 0) == sizeof(number), "getrandom failed");
  }
  return number;
}

// A random UUID (version 4), as torchrun makes for --standalone.
std::string RandomRunId() {
  std::string hex = RandomHex(16);
  hex[12] = '4';
  hex[16] = "89ab"[hex[16] % 4];
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

std::string StoppedBy(int signal) { return absl::StrCat("stopped by signal ", signal); }

}  // namespace

Launcher::Launcher(CliProgram program, const LaunchPlan& plan, const Environment& environment)
    : program_(program),
      plan_(plan),
      environment_(environment),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      descriptor_limit_(RaiseDescriptorLimit()),
      signals_(loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
               {plan_.forwarded_signals, [this](int signal) { OnForwardedSignal(signal); }}),
      output_(loop_, program_, plan_, environment_) {}

Launcher::~Launcher() = default;

int Launcher::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    Print(status.message());
    LeaveDirectory();
    output_.RemoveRunDirs();
    output_.console().Close(MonoNow() + kConsoleDrainTimeout);
    // As in RunProgram().
    return program_ == CliProgram::kFsdpAgent && absl::IsInvalidArgument(status) ? 2
                                                                                 : OwnFailureCode();
  }
  ScheduleWaitNotice();
  loop_.Run();
  return Finish();
}

void Launcher::Print(absl::string_view text) { output_.Print(text); }

absl::Status Launcher::Start() {
  for (const std::string& name : plan_.unknown_signals) {
    Log(LogLevel::kWarning, absl::StrCat("--signals-to-handle: '", name,
                                         "' is no signal that can be handled; it is left out"));
  }
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  RETURN_IF_ERROR(CheckVisibleDevices(plan_, environment_));
  ASSIGN_OR_RETURN(worker_cpus_, WorkerCpus(plan_, environment_));
  RETURN_IF_ERROR(FindProgram());
  ASSIGN_OR_RETURN(keeper_path_, FindKeeperBinary());
  RETURN_IF_ERROR(OpenMonitoring());
  const auto is_cancelled = [this] {
    own_signal_ = own_signal_ != 0 ? own_signal_ : signals_.TakePending();
    return own_signal_ != 0;
  };
  ASSIGN_OR_RETURN(directory_, MakeDirectory({plan_, environment_, is_cancelled}));
  ASSIGN_OR_RETURN(place_, directory_->Find());
  if (own_signal_ != 0) {  // It may have come when nothing was left to be interrupted.
    return absl::CancelledError(StoppedBy(own_signal_));
  }
  run_id_ = plan_.rdzv_id_is_random ? RandomRunId() : plan_.rdzv_id;
  RETURN_IF_ERROR(output_.MakeRunDirs(run_id_));
  RETURN_IF_ERROR(OpenLink());
  MakeStore();
  MakeAgent();
  agent_->Start();
  return absl::OkStatus();
}

// A node that cannot run the program says so to the others, who would wait for it in vain.
absl::Status Launcher::FindProgram() {
  absl::StatusOr<std::string> python = CheckProgram(plan_, environment_);
  if (python.ok()) {
    python_ = *std::move(python);
    return absl::OkStatus();
  }
  if (plan_.IsSingleNode() || program_ == CliProgram::kFsdpAgent) {
    return python.status();
  }
  cannot_run_ = std::string(python.status().message());
  Print(absl::StrCat(cannot_run_, "; telling the other nodes"));
  return absl::OkStatus();
}

// Opens the link to the coordinator, in this process or over gRPC.
absl::Status Launcher::OpenLink() {
  if (place_.hosts) {
    MakeHost();
    link_ = &host_->local_link();
    return host_->Start();
  }
  GrpcLink::Options options{.targets = place_.targets(), .job_id = run_id_};
  options.token = [token = place_.token.value, path = place_.token.path]() {
    return token.empty() ? TokenFile::Read(path) : absl::StatusOr<std::string>(token);
  };
  if (plan_.read_timeout.has_value()) {
    // A coordinator that does not answer is tried again before it is given up.
    options.open_timeout =
        std::min<Duration>(*plan_.read_timeout, clocks_.coordinator_grace / kAttemptsInGrace);
  }
  options.stream_silence = clocks_.stream_silence;
  grpc_link_ = std::make_unique<GrpcLink>(loop_, std::move(options));
  link_ = grpc_link_.get();
  return absl::OkStatus();
}

void Launcher::MakeHost() {
  CoordinatorHost::Hooks hooks;
  hooks.on_finish = [this](const JobOutcome& outcome) {
    outcome_ = outcome;
    StopWhenDone();
  };
  hooks.on_step = [this] { OnCoordinatorStep(); };
  host_ = std::make_unique<CoordinatorHost>(
      loop_,
      CoordinatorHost::Options{MakeJobSpec(), run_id_, place_.is_shared() ? place_.token.value : "",
                               clocks_.stream_silence},
      std::move(hooks));
}

JobSpec Launcher::MakeJobSpec() const {
  JobSpec spec;
  spec.min_nodes = plan_.min_nodes;
  spec.max_nodes = plan_.max_nodes;
  spec.max_restarts = plan_.max_restarts;
  spec.node_ranks_bind = plan_.backend == RendezvousBackend::kStatic;
  spec.restart_backoff = plan_.restart_backoff;
  spec.max_restart_backoff = plan_.max_restart_backoff;
  spec.suspect_after = clocks_.suspect_after;
  spec.dead_after = clocks_.node_lease;
  spec.join_timeout = plan_.join_timeout;
  spec.last_call = plan_.last_call_timeout;
  spec.stop_grace = plan_.shutdown_timeout;
  spec.abort_grace = plan_.abort_timeout;
  spec.exits_as_worker = plan_.exit_code_style == ExitCodeStyle::kWorker;
  return spec;
}

// The coordinator's port serves the store too: a connection that starts with the HTTP/2 preface is
// an agent's.
void Launcher::MakeStore() {
  store_ = OpenStore();
  if (!UsesAgentStore(plan_, environment_)) {
    store_->LetRankZeroServe();
  }
}

std::unique_ptr<WorkerStore> Launcher::OpenStore() {
  const WorkerStore::Addresses addresses{place_.node_address, place_.store_address};
  if (place_.listeners.empty()) {
    return std::make_unique<WorkerStore>(loop_, addresses);
  }
  auto server =
      std::make_unique<StoreServer>(loop_, StoreServer::Limits{}, [this](UniqueFd connection) {
        if (host_ != nullptr) {
          host_->AddConnection(std::move(connection));
        }
      });
  for (UniqueFd& listener : place_.listeners) {
    FSDPRUN_CHECK(server->ListenOn(std::move(listener)).ok(), "the listening socket is bound");
  }
  place_.listeners.clear();
  return std::make_unique<WorkerStore>(loop_, addresses, std::move(server));
}

NodeSpec Launcher::MakeNodeSpec() const {
  NodeSpec spec;
  spec.node.incarnation = Incarnation(RandomNonZero());
  spec.node.name = plan_.local_addr.empty() ? HostName() : plan_.local_addr;
  spec.node.address = place_.node_address;
  spec.node.local_world_size = plan_.nproc_per_node;
  spec.node.role = plan_.role;
  if (plan_.node_rank >= 0) {
    spec.node.requested_node_rank = plan_.node_rank;
  }
  spec.coordinator_endpoint = place_.where();
  spec.cannot_run = cannot_run_;
  spec.connect_timeout = cannot_run_.empty() ? Duration(plan_.join_timeout)
                                             : std::min<Duration>(plan_.join_timeout, kTellTimeout);
  spec.heartbeat_interval = clocks_.heartbeat_interval;
  spec.coordinator_grace = clocks_.coordinator_grace;
  spec.stop_grace = plan_.shutdown_timeout;
  return spec;
}

LocalAgent::Options Launcher::MakeAgentOptions() const {
  LocalAgent::Options options;
  options.spec = MakeNodeSpec();
  options.keeper_path = keeper_path_;
  options.base_environment = environment_;
  // Only agents need the job's secret.
  options.base_environment.erase("FSDPRUN_TOKEN");
  options.command = [this](int local_rank) { return WorkerCommand(plan_, python_, local_rank); };
  options.run_id = run_id_;
  options.dirs = output_.dirs();
  options.output = plan_.output;
  options.draws_progress = output_.draws_progress();
  options.keeper_lease = plan_.IsSingleNode() ? Duration::zero() : clocks_.keeper_lease;
  options.descriptor_limit = descriptor_limit_;
  options.token_advice = place_.token.advice;
  options.handled_signals = plan_.signals_text;
  options.has_virtual_local_rank = plan_.has_virtual_local_rank;
  options.uses_agent_store = UsesAgentStore(plan_, environment_);
  options.file_timer = file_timer_.get();
  if (file_timer_ != nullptr) {
    options.base_environment[contract::kEnvTimerFile] = file_timer_->path();
  }
  options.omp_threads = plan_.omp_threads;
  options.worker_cpus = worker_cpus_;
  options.reads_stdin = [source = plan_.stdin_source](int local_rank) {
    return source == StdinSource::kInherit || (source == StdinSource::kRankZero && local_rank == 0);
  };
  options.stops_groups = plan_.stop_signal_to == StopSignalTo::kGroup;
  return options;
}

void Launcher::MakeAgent() {
  LocalAgent::Hooks hooks;
  hooks.on_progress = [this](const Progress& progress) { output_.ShowProgress(progress); };
  hooks.sink = output_.MakeSink();
  hooks.on_exit = [this](int code, const std::string& message) { OnAgentExit(code, message); };
  WatchAgent(&hooks);
  agent_ =
      std::make_unique<LocalAgent>(loop_, MakeAgentOptions(), std::move(hooks), *link_, *store_);
  output_.Attach(agent_.get());
}

// An fsdp-agent outlives its coordinator: it joins again as a new incarnation, with a new log
// directory.
void Launcher::RestartAgent() {
  if (is_ended_by_signal_) {
    return;
  }
  Print(agent_message_);
  if (events_ != nullptr) {
    std::exchange(events_, nullptr)->OnEnd(agent_message_);
  }
  if (!restarts_.Take(MonoNow())) {
    agent_message_ = absl::StrCat("gave up after ", RestartLimit::kMaxInARow + 1,
                                  " ends in a row, each within ", ToSeconds(RestartLimit::kLongRun),
                                  " s of the one before; the last: ", agent_message_,
                                  ". Remove the cause, here or at fsdprun at ", place_.where(),
                                  ", then start this agent again");
    loop_.Stop();
    return;
  }
  output_.ChangeRunDirs([this](const absl::Status& status) { OnRunDirs(status); });
}

void Launcher::OnRunDirs(const absl::Status& status) {
  if (is_ended_by_signal_) {
    return;
  }
  if (!status.ok()) {
    agent_message_ = std::string(status.message());
    loop_.Stop();
    return;
  }
  agent_->DrainOutput();
  agent_exit_.reset();
  waiting_since_ = MonoNow();
  output_.Attach(nullptr);
  agent_.reset();
  MakeAgent();
  agent_->Start();
}

void Launcher::OnSignal(int signal) {
  own_signal_ = own_signal_ == 0 ? signal : own_signal_;
  if (host_ != nullptr) {
    host_->OperatorStop(signal);
  } else if (agent_exit_.has_value() && agent_->has_lost_coordinator()) {
    is_ended_by_signal_ = true;  // Between two incarnations: there is no agent to signal.
    agent_message_ = StoppedBy(signal);
    loop_.Stop();
  } else if (agent_ != nullptr) {
    agent_->OperatorSignal(signal);
  }
}

void Launcher::OnForwardedSignal(int signal) {
  if (agent_ == nullptr || !agent_->ForwardSignal(signal)) {
    Log(LogLevel::kWarning,
        absl::StrCat(SignalName(signal), " came while no worker ran; it was not passed on"));
  }
}

void Launcher::OnCoordinatorStep() {
  TrackPhase();
  // On rank 0's own node the progress comes directly from the worker, before the heartbeat.
  if (agent_ != nullptr && agent_->machine().assignment().group_rank != 0) {
    output_.ShowProgress(host_->machine().progress());
  }
}

void Launcher::OnAgentExit(int code, const std::string& message) {
  agent_exit_ = code;
  agent_message_ = message;
  if (program_ == CliProgram::kFsdpAgent && agent_->has_lost_coordinator()) {
    loop_.Post([this] { RestartAgent(); });
    return;
  }
  if (IsOfAnotherRunId() && times_found_again_++ < kMaxTimesFoundAgain) {
    loop_.Post([this] { FindAgain(); });
    return;
  }
  if (host_ != nullptr && !host_->machine().outcome().has_value()) {
    OnLocalAgentExit();
  }
  StopWhenDone();
}

bool Launcher::IsOfAnotherRunId() const {
  return host_ == nullptr && !agent_->was_admitted() && absl::IsNotFound(agent_->last_link_error());
}

// The endpoint is another job's: ours has its coordinator elsewhere.
void Launcher::FindAgain() {
  absl::StatusOr<Place> place = directory_->FindAgain(agent_->last_link_error());
  if (!place.ok()) {
    const bool is_news = place.status() != agent_->last_link_error();
    agent_message_ = is_news ? std::string(place.status().message()) : agent_message_;
    StopWhenDone();
    return;
  }
  if (own_signal_ != 0) {
    agent_message_ = StoppedBy(own_signal_);
    StopWhenDone();
    return;
  }
  agent_exit_.reset();
  output_.Attach(nullptr);
  agent_.reset();
  store_.reset();
  grpc_link_.reset();
  place_ = *std::move(place);
  FSDPRUN_CHECK(OpenLink().ok(), "gRPC was there for the first link");
  MakeStore();
  MakeAgent();
  agent_->Start();
}

// The agent of this process has ended while the job is still running. A one-node job cannot go on
// without it, and a launcher whose own node was rejected was started with wrong options.
void Launcher::OnLocalAgentExit() {
  if (plan_.IsSingleNode() || !agent_->was_admitted()) {
    is_job_lost_ = true;
  } else {
    Print(absl::StrCat(agent_message_, "; the coordinator keeps running here for the other nodes"));
  }
}

void Launcher::StopWhenDone() {
  if (agent_exit_.has_value() && (host_ == nullptr || outcome_.has_value() || is_job_lost_)) {
    loop_.Stop();
  }
}

void Launcher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kWaitNoticeInterval, [this] {
    PrintWaitNotice();
    ScheduleWaitNotice();
  });
}

// Prints what the launcher is waiting for; nothing once the job runs.
void Launcher::PrintWaitNotice() {
  const auto since = std::chrono::floor<std::chrono::seconds>(MonoNow() - waiting_since_);
  const std::string how_long =
      absl::StrCat(since.count(), " s of ", ToSeconds(plan_.join_timeout), " s");
  if (host_ != nullptr && host_->machine().is_pausing()) {
    const std::string_view reason = host_->machine().reason();
    Print(absl::string_view(reason.data(), reason.size()));
  } else if (host_ != nullptr && is_in_rendezvous_) {
    const std::string where =
        !place_.is_shared() ? ""
                            : absl::StrCat(" at ", place_.where(), " with run id '", run_id_, "'");
    const std::string_view reason = host_->machine().reason();
    Print(
        absl::StrCat(absl::string_view(reason.data(), reason.size()), where, " (", how_long, ")"));
  } else if (host_ == nullptr && !agent_->was_admitted()) {
    Print(absl::StrCat("waiting for the coordinator at ", place_.where(), " (", how_long,
                       "): ", agent_->last_link_error().message()));
  }
}

// After every step of the coordinator.
void Launcher::TrackPhase() {
  const bool was_in_rendezvous =
      std::exchange(is_in_rendezvous_, host_->machine().phase() == job::Phase::kRendezvous &&
                                           !host_->machine().is_pausing());
  if (is_in_rendezvous_ && !was_in_rendezvous) {
    waiting_since_ = MonoNow();
  }
}

int Launcher::Finish() {
  const bool is_interrupted =
      outcome_.has_value() && outcome_->kind == OutcomeKind::kStoppedBySignal;
  OutputDrain drain(output_.console(), signals_,
                    MonoNow() + (is_interrupted ? kInterruptedDrainTimeout : kConsoleDrainTimeout));
  link_->Close();
  LeaveDirectory();
  if (host_ != nullptr) {
    host_->Shutdown();
  }
  drain.ShowRemainingOutput(*agent_);
  const int exit_code = ExitCode();
  if (events_ != nullptr) {
    events_->OnEnd(WhyNotToTheEnd());
  }
  const EndContext context{program_, plan_, environment_, output_.console()};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else if (exit_code != 0 && !agent_message_.empty()) {
    ReportReason(agent_message_, context);
    ReportOwnFailure();
  }
  output_.EndRunDirs(exit_code == 0, drain.all_shown());
  drain.WaitForReader();
  output_.console().Close(drain.deadline());
  return exit_code;
}

// What failed here is not lost with the coordinator.
void Launcher::ReportOwnFailure() {
  if (const auto outcome = OutcomeOfOwnFailures(agent_->machine());
      outcome.has_value() && agent_->has_lost_coordinator()) {
    ReportOutcome(*outcome, {program_, plan_, environment_, output_.console()});
  }
}

int Launcher::ExitCode() const {
  if (outcome_.has_value()) {
    return outcome_->exit_code;
  }
  // Without an outcome the coordinator in this process ended before the job did.
  const int code = host_ != nullptr ? std::max(*agent_exit_, 1) : *agent_exit_;
  return code == 1 ? OwnFailureCode() : code;
}

void Launcher::LeaveDirectory() {
  if (!place_.hosts || !place_.is_shared()) {
    return;
  }
  const bool closes = outcome_.has_value() && outcome_->kind != OutcomeKind::kStoppedBySignal;
  FileThread files(loop_);
  files.Run([directory = directory_, closes] { directory->JobEnded(closes); }, [] {});
  files.Await(MonoNow() + kLeaveDirectoryTimeout);
}

}  // namespace fsdprun
