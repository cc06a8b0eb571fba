// What a launcher is made of: the coordinator or the way to it, the store and the agent.
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "launcher/cli/worker_command.h"
#include "launcher/directory/claim.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/job_token.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/launcher.h"
#include "launcher/run/machine.h"
#include "launcher/run/tls_setup.h"
#include "launcher/slurm/slurm_plan.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

/// To reach the coordinator, before it is given up.
constexpr int kAttemptsInGrace = 3;
/// How long a launcher that cannot run the program looks for the coordinator, to say so.
constexpr Duration kTellTimeout = std::chrono::seconds(60);
/// For a coordinator that was found late.
constexpr Duration kShortestConnectTimeout = std::chrono::seconds(1);

uint64_t RandomNonZero() {
  uint64_t number = 0;
  while (number == 0) {
    FSDPRUN_CHECK(::getrandom(&number, sizeof(number), 0) == sizeof(number), "getrandom failed");
  }
  return number;
}

/// False with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as in torchrun but for the static backend:
/// rank 0 then serves the store, and scripts may have tcp:// stores of their own.
bool UsesAgentStore(const LaunchPlan& plan, const Environment& environment) {
  const bool is_dynamic = plan.is_agent || plan.backend != RendezvousBackend::kStatic;
  const auto variable = environment.find("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  return !is_dynamic || variable == environment.end() || variable->second != "1";
}

}  // namespace

// The job has one node, and its coordinator is here.
bool Launcher::IsAlone() const { return plan_.IsSingleNode() && plan_.coordinators.empty(); }

// A node that cannot run the program says so to the others, who would wait for it in vain.
absl::Status Launcher::FindProgram() {
  absl::StatusOr<std::string> python = CheckProgram(plan_, environment_);
  if (python.ok()) {
    python_ = *std::move(python);
    return absl::OkStatus();
  }
  if (IsAlone() || program_ == CliProgram::kFsdpAgent) {
    return python.status();
  }
  cannot_run_ = std::string(python.status().message());
  if (!plan_.shares_console) {
    Print(absl::StrCat(cannot_run_, "; telling the other nodes"));
  }
  return absl::OkStatus();
}

// Opens the link to the coordinator, in this process or over gRPC.
absl::Status Launcher::OpenLink() {
  queue_.reset();  // Of a coordinator that was here before.
  if (place_.hosts) {
    RETURN_IF_ERROR(CheckCanServe(tls_.get()));
    MakeHost();
    link_ = &host_->local_link();
    return host_->Start();
  }
  GrpcLink::Options options{.targets = place_.targets(), .job_id = run_id_};
  options.token = [this] {  // A coordinator that takes the job over may have another one.
    const JobToken& token = place_.token;
    return token.value.empty() ? TokenFile::Read(token.path)
                               : absl::StatusOr<std::string>(token.value);
  };
  if (plan_.read_timeout.has_value()) {
    // A coordinator that does not answer is tried again before it is given up.
    options.open_timeout =
        std::min<Duration>(*plan_.read_timeout, clocks_.coordinator_grace / kAttemptsInGrace);
    options.has_fixed_open_timeout = true;
  }
  options.tls = tls_;
  options.tls_name = place_.tls_name;
  grpc_link_ = std::make_unique<GrpcLink>(loop_, std::move(options));
  link_ = grpc_link_.get();
  return absl::OkStatus();
}

// The coordinator's port serves the store too: a connection that starts with the HTTP/2 preface is
// an agent's.
absl::Status Launcher::MakeStore() {
  ASSIGN_OR_RETURN(store_, OpenStore());
  if (!UsesAgentStore(plan_, environment_)) {
    store_->LetRankZeroServe();
  } else if (!plan_.keeper_socket.empty()) {
    ASSIGN_OR_RETURN(const std::string program, OwnProgram());
    store_->LetProcessServe(program);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WorkerStore>> Launcher::OpenStore() {
  const WorkerStore::Addresses addresses{place_.node_address, place_.store_address};
  port_server_ = nullptr;
  if (place_.listeners.empty()) {
    return std::make_unique<WorkerStore>(loop_, addresses);
  }
  auto server =
      std::make_unique<StoreThread>(loop_, StoreServer::Limits{}, [this](UniqueFd connection) {
        if (host_ != nullptr) {
          host_->AddConnection(std::move(connection));
        }
      });
  for (UniqueFd& listener : place_.listeners) {
    RETURN_IF_ERROR(server->ListenOn(std::move(listener)).status());
  }
  place_.listeners.clear();
  port_server_ = server.get();
  return std::make_unique<WorkerStore>(loop_, addresses, std::move(server));
}

Duration Launcher::ConnectTimeout() const {
  return cannot_run_.empty() ? Duration(plan_.join_timeout)
                             : std::min<Duration>(plan_.join_timeout, kTellTimeout);
}

std::string Launcher::NodeName() const {
  if (!plan_.local_addr.empty()) {
    return plan_.local_addr;
  }
  return plan_.node_name.empty() ? HostName() : plan_.node_name;
}

NodeSpec Launcher::MakeNodeSpec() const {
  NodeSpec spec;
  spec.node.incarnation =
      incarnation_ != Incarnation() ? incarnation_ : Incarnation(RandomNonZero());
  spec.node.has_successor = !plan_.keeper_socket.empty();
  spec.node.name = NodeName();
  spec.node.address = place_.node_address;
  spec.node.local_world_size = plan_.nproc_per_node;
  spec.node.role = plan_.role;
  if (plan_.node_rank >= 0) {
    spec.node.requested_node_rank = plan_.node_rank;
  }
  spec.coordinator_endpoint = place_.where();
  spec.cannot_run = cannot_run_;
  const Duration waited = std::chrono::floor<std::chrono::seconds>(MonoNow() - waiting_since_);
  const Duration all = ConnectTimeout();
  spec.connect_timeout = std::max<Duration>(all - waited, std::min(all, kShortestConnectTimeout));
  spec.node_lease = clocks_.node_lease;
  spec.heartbeat_interval = clocks_.heartbeat_interval;
  spec.stream_silence = clocks_.stream_silence;
  spec.coordinator_grace = clocks_.coordinator_grace;
  spec.stop_grace = plan_.shutdown_timeout;
  return spec;
}

LocalAgent::Options Launcher::MakeAgentOptions() const {
  LocalAgent::Options options;
  options.spec = MakeNodeSpec();
  options.keeper_path = keeper_path_;
  options.base_environment = WorkerEnvironment(environment_, plan_);
  // Only agents need the job's secret.
  options.base_environment.erase("FSDPRUN_TOKEN");
  options.command = [this](int local_rank) { return WorkerCommand(plan_, python_, local_rank); };
  options.run_id = run_id_;
  options.dirs = output_.dirs();
  options.output = plan_.output;
  options.draws_progress = output_.draws_progress();
  options.keeper_lease = IsAlone() ? Duration::zero() : clocks_.keeper_lease;
  options.keeper_socket = {.path = plan_.keeper_socket, .grace = clocks_.coordinator_grace};
  // Workers set timers while no agent is there, too.
  options.keeper_socket.held_fd = file_timer_ != nullptr ? file_timer_->fd() : -1;
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
  if (plan_.local_place.has_value()) {
    options.local_place = {plan_.local_place->local_rank, plan_.local_place->local_world_size};
  }
  options.stops_groups = plan_.stop_signal_to == StopSignalTo::kGroup;
  return options;
}

// A keeper whose agent has left nothing is ended: it has no workers, or nobody could go on with
// them.
std::optional<Launcher::LeftBehind> Launcher::FindLeftBehind() const {
  if (plan_.keeper_socket.empty()) {
    return std::nullopt;
  }
  absl::StatusOr<AttachedKeeper> keeper = AttachToKeeper(plan_.keeper_socket);
  if (!keeper.ok()) {
    if (!absl::IsNotFound(keeper.status())) {
      Log(LogLevel::kWarning, std::string(keeper.status().message()));
    }
    return std::nullopt;
  }
  absl::StatusOr<AgentMemo> memo = DecodeMemo(keeper->memo);
  if (!memo.ok()) {
    keeper->socket.reset();
    if (const absl::Status status = EndKeeper(plan_.keeper_socket); !status.ok()) {
      Log(LogLevel::kWarning, std::string(status.message()));  // Its grace ends it.
    }
    return std::nullopt;
  }
  Log(LogLevel::kWarning,
      absl::StrCat("the agent that ran here was lost; going on in its place, with the workers of "
                   "generation ",
                   memo->node.assignment.generation.value(), " as they are"));
  return LeftBehind{*std::move(keeper), *std::move(memo)};
}

void Launcher::MakeAgent() {
  LocalAgent::Hooks hooks;
  hooks.on_progress = [this](const Progress& progress) { output_.ShowProgress(progress); };
  hooks.sink = output_.MakeSink();
  if (!plan_.keeper_socket.empty()) {
    hooks.kept_output = [this](keeper::Stream stream) {
      const ConsoleChannel::Progress bytes = output_.WrittenOf(stream);
      return LocalAgent::Hooks::Kept{.passed = bytes.queued, .kept = bytes.written};
    };
  }
  hooks.on_exit = [this](int code, const std::string& message) { OnAgentExit(code, message); };
  WatchAgent(&hooks);
  LocalAgent::Options options = MakeAgentOptions();
  if (standby_ != nullptr) {
    standby_->SetAgent(options.spec.node.incarnation);
  }
  agent_ =
      std::make_unique<LocalAgent>(loop_, std::move(options), std::move(hooks), *link_, *store_);
  output_.Attach(agent_.get());
  incarnation_ = Incarnation();
  was_turned_away_ = false;
  StepSearch(place::Began{place_.may_move, place_.can_be_taken, place_.longest_look_pause,
                          place_.can_be_looked_up});
  TendPlace();
}

}  // namespace fsdprun
