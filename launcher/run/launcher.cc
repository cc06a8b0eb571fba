#include "launcher/run/launcher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/keeper_client.h"
#include "base/check.h"
#include "base/descriptor_limit.h"
#include "base/status_macros.h"
#include "launcher/directory/job_token.h"
#include "launcher/report/failure_hint.h"
#include "launcher/run/machine.h"
#include "launcher/run/tls_setup.h"
#include "launcher/run/worker_cpus.h"
#include "launcher/slurm/requeue.h"

namespace fsdprun {
namespace {

/// How long the search for a coordinator that a signal has interrupted may take to end.
constexpr Duration kInterruptedSearchTimeout = std::chrono::seconds(2);

// A random UUID (version 4), as torchrun makes for --standalone.
std::string RandomRunId() {
  std::string hex = RandomHex(16);
  hex[12] = '4';
  hex[16] = "89ab"[hex[16] % 4];
  return absl::StrCat(hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

}  // namespace

Launcher::Launcher(CliProgram program, const LaunchPlan& plan, const Environment& environment,
                   std::vector<std::string> arguments)
    : program_(program),
      plan_(plan),
      environment_(environment),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      arguments_(std::move(arguments)),
      descriptor_limit_(RaiseDescriptorLimit()),
      signals_(loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
               {plan_.forwarded_signals, [this](int signal) { OnForwardedSignal(signal); }}),
      output_(loop_, program_, plan_, environment_) {}

Launcher::~Launcher() = default;

int Launcher::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    return EndWithoutStart(status);
  }
  ScheduleWaitNotice();
  loop_.Run();
  return agent_ != nullptr ? Finish() : EndWithoutStart(absl::UnavailableError(agent_message_));
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
  ASSIGN_OR_RETURN(tls_, MakeTls(plan_));
  run_id_ = plan_.rdzv_id_is_random ? RandomRunId() : plan_.rdzv_id;
  RETURN_IF_ERROR(FindFirst());
  std::optional<LeftBehind> left = FindLeftBehind();
  if (left.has_value()) {
    output_.TakeRunDirs(run_id_, left->memo.dirs);
    incarnation_ = left->memo.node.incarnation;
  } else {
    RETURN_IF_ERROR(output_.MakeRunDirs(run_id_));
  }
  if (!plan_.keeper_socket.empty()) {
    RETURN_IF_ERROR(OpenTimer(left.has_value() ? left->memo.timer_file : ""));
  }
  event_log_ = std::make_unique<EventLog>(loop_, EventSource{run_id_, NodeName()});
  OpenEventLog();
  RETURN_IF_ERROR(OpenLink());
  RETURN_IF_ERROR(MakeStore());
  MakeAgent();
  if (left.has_value()) {
    own_signal_ = left->memo.node.leaving.has_value() ? left->memo.node.leaving->signal : 0;
    agent_->Resume(std::move(left->keeper), left->memo);
  } else {
    agent_->Start();
  }
  return absl::OkStatus();
}

// While the directory waits, probes and signals are answered. On a file system that hangs it may
// never end: then its thread is left to itself, and what it has with it.
absl::Status Launcher::FindFirst() {
  struct Found {
    /// The rest is the directory's until then.
    bool is_over = false;
    absl::StatusOr<std::unique_ptr<Directory>> directory = absl::UnknownError("not made");
    absl::StatusOr<Place> place = absl::UnknownError("not looked for");
  };
  const auto found = std::make_shared<Found>();
  const DirectoryContext context{
      .plan = plan_,
      .environment = environment_,
      .is_cancelled = [is_over = is_search_over_] { return is_over->load(); },
      .notify = [this, post = gate_.poster()](
                    const std::string& notice) { post([this, notice] { Print(notice); }); },
      .on_taken = [this, post = gate_.poster()] { post([this] { StepSearch(place::Taken{}); }); },
      .tls = tls_};
  const auto find = [found, context] {
    found->directory = MakeDirectory(context);
    found->place = found->directory.ok() ? (*found->directory)->Find()
                                         : absl::StatusOr<Place>(found->directory.status());
  };
  directory_thread_.Run(find, [this, found] {
    found->is_over = true;
    loop_.Stop();
  });
  loop_.Run();
  absl::Status interrupted = absl::CancelledError("interrupted while looking for the coordinator");
  if (!found->is_over) {
    return interrupted;
  }
  ASSIGN_OR_RETURN(directory_, std::move(found->directory));
  ASSIGN_OR_RETURN(place_, std::move(found->place));
  return own_signal_ == 0  // It may have come when nothing was left to be interrupted.
             ? absl::OkStatus()
             : interrupted;
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
  OpenEventLog();
  MakeAgent();
  agent_->Start();
}

std::string Launcher::StoppedBySignal(int signal) {
  return absl::StrCat("stopped by signal ", signal);
}

void Launcher::OnSignal(int signal) {
  if (queue_ != nullptr) {
    queue_->NoteSignal(signal);
  }
  if (plan_.scheduler_job.has_value() && !IsNews(own_signal_, signal)) {
    return;
  }
  own_signal_ = own_signal_ == 0 ? signal : own_signal_;
  *is_search_over_ = true;
  StepSearch(place::Leave{});
  if (host_ != nullptr) {
    host_->OperatorStop(signal);
  } else if (agent_exit_.has_value() && (search_.needs_place() || agent_->has_lost_coordinator())) {
    is_ended_by_signal_ = true;  // Between two incarnations: there is no agent to signal.
    agent_message_ = StoppedBySignal(signal);
    loop_.Stop();
  } else if (agent_ != nullptr) {
    agent_->OperatorSignal(signal);
    ScheduleStopNotice();
  } else {
    loop_.At(MonoNow() + kInterruptedSearchTimeout, [this] { loop_.Stop(); });
  }
}

void Launcher::OnForwardedSignal(int signal) {
  if (queue_ != nullptr) {
    queue_->NotePassedSignal(signal);
  }
  if (agent_ == nullptr || !agent_->ForwardSignal(signal)) {
    Log(LogLevel::kWarning,
        absl::StrCat(SignalName(signal), " came while no worker ran; it was not passed on"));
  }
}

void Launcher::OnCoordinatorStep() {
  if (queue_ != nullptr) {
    queue_->OnStep(host_->machine());
  }
  TrackStop();
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
  if (LooksElsewhere()) {
    return;
  }
  if (host_ != nullptr && !host_->machine().outcome().has_value()) {
    OnLocalAgentExit();
  }
  StopWhenDone();
}

// The agent of this process has ended while the job is still running. A one-node job cannot go on
// without it, unless an operator has drained the node; and a launcher whose own node was rejected
// was started with wrong options.
void Launcher::OnLocalAgentExit() {
  const bool is_drained = agent_->machine().leaves_job() && agent_exit_ == 0;
  if ((plan_.IsSingleNode() && !is_drained) || !agent_->was_admitted()) {
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

}  // namespace fsdprun
