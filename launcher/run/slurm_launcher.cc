#include "launcher/run/slurm_launcher.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/free_port.h"
#include "launcher/directory/job_token.h"
#include "launcher/run/job_end.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/notices.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

constexpr Duration kNoticeInterval = std::chrono::seconds(5);
/// How long agents that were released may show what is left of their workers' output.
constexpr Duration kStepEndTimeout = std::chrono::seconds(60);
constexpr Duration kDrainTimeout = std::chrono::seconds(60);
constexpr size_t kTokenBytes = 32;

}  // namespace

SlurmLauncher::SlurmLauncher(const LaunchPlan& plan, const Environment& environment,
                             const SlurmAllocation& allocation, std::vector<std::string> command)
    : plan_(plan),
      environment_(environment),
      allocation_(allocation),
      command_(std::move(command)),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      signals_(loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
               {plan_.forwarded_signals, [this](int signal) { host_->ForwardSignal(signal); }}),
      output_(loop_, CliProgram::kFsdprun, plan_, environment_) {}

SlurmLauncher::~SlurmLauncher() = default;

int SlurmLauncher::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
    output_.console().Close(MonoNow() + kDrainTimeout);
    return 1;
  }
  ScheduleWaitNotice();
  loop_.Run();
  return Finish();
}

absl::Status SlurmLauncher::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  RETURN_IF_ERROR(Host());
  return StartStep();
}

absl::Status SlurmLauncher::Host() {
  ASSIGN_OR_RETURN(place_, HostOnFreePort({plan_, environment_}));
  ASSIGN_OR_RETURN(place_.token.value, GivenToken(environment_, plan_.token_file));
  if (place_.token.value.empty()) {
    place_.token.value = RandomHex(kTokenBytes);
  }
  CoordinatorHost::Hooks hooks;
  hooks.on_finish = [this](const JobOutcome& outcome) { OnFinish(outcome); };
  hooks.on_step = [this] { OnCoordinatorStep(); };
  host_ = std::make_unique<CoordinatorHost>(
      loop_,
      CoordinatorHost::Options{MakeJobSpec(plan_, clocks_), plan_.rdzv_id, place_.token.value,
                               clocks_.stream_silence},
      std::move(hooks));
  door_ = std::make_unique<StoreServer>(loop_, StoreServer::Limits{}, [this](UniqueFd connection) {
    host_->AddConnection(std::move(connection));
  });
  for (UniqueFd& listener : place_.listeners) {
    FSDPRUN_CHECK(door_->ListenOn(std::move(listener)).ok(), "the listening socket is bound");
  }
  place_.listeners.clear();
  // Who speaks here for nodes that cannot takes no answers.
  host_->local_link().SetCallbacks({[] {}, [](const ToAgent&) {}, [](const LinkLoss&) {}});
  host_->local_link().Open();
  return host_->Start();
}

absl::Status SlurmLauncher::StartStep() {
  SrunStep::Hooks hooks;
  hooks.on_lines = [this](absl::string_view lines) { OnStepLines(lines); };
  hooks.has_room = [this] { return output_.console().HasRoom(ConsoleStream::kError); };
  hooks.on_end = [this](int code) { OnStepEnd(code); };
  step_ = std::make_unique<SrunStep>(loop_, std::move(hooks));
  return step_->Start(SrunCommand(allocation_, plan_, command_),
                      SrunEnvironment(environment_, absl::StrJoin(place_.targets(), ","),
                                      plan_.rdzv_id, place_.token.value));
}

void SlurmLauncher::OnSignal(int signal) {
  own_signal_ = own_signal_ == 0 ? signal : own_signal_;
  host_->OperatorStop(signal);
}

void SlurmLauncher::OnFinish(const JobOutcome& outcome) {
  outcome_ = outcome;
  if (step_code_.has_value()) {
    loop_.Stop();
    return;
  }
  loop_.At(MonoNow() + kStepEndTimeout, [this] {
    output_.Print(absl::StrCat("the job is over, but its step has not ended within ",
                               ToSeconds(kStepEndTimeout), " s (a node may be lost); ending it"));
    step_->Signal(SIGTERM);
  });
}

void SlurmLauncher::OnCoordinatorStep() {
  for (const job::Node& node : host_->machine().nodes()) {
    joined_.insert(node.info.name);
  }
  output_.ShowProgress(host_->machine().progress());
  EndIfTooFewAreLeft();
}

void SlurmLauncher::OnStepLines(absl::string_view lines) {
  output_.console().WriteLines(ConsoleStream::kError, lines);
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    if (std::string error = ReadSrunError(line); !error.empty()) {
      last_srun_error_ = std::move(error);
    }
    if (const auto ended = ReadTasksEnded(line);
        ended.has_value() && !host_->machine().outcome().has_value()) {
      OnTasksEnded(*ended);
    }
  }
}

// Whoever cannot run a launcher cannot say so: it is said in its place, and the job ends at once
// instead of waiting for that node.
void SlurmLauncher::OnTasksEnded(const SrunTasksEnded& ended) {
  ended_.insert(ended.nodes.begin(), ended.nodes.end());
  const auto node =
      std::find_if(ended.nodes.begin(), ended.nodes.end(),
                   [this](const std::string& name) { return !joined_.contains(name); });
  if (node == ended.nodes.end()) {
    EndIfTooFewAreLeft();
    return;
  }
  AgentJoined joined;
  joined.node.incarnation = Incarnation(1);
  joined.node.name = *node;
  joined.cannot_run = absl::StrCat("'", command_.front(),
                                   "' did not get to the coordinator, as srun says: ", ended.how,
                                   "; is it on that node, under the same path?");
  host_->local_link().Send({joined.node.incarnation, Generation(), joined});
}

// srun starts no agent a second time: a job that needs more nodes than are left, and to which no
// others may come, would wait in vain.
void SlurmLauncher::EndIfTooFewAreLeft() {
  const size_t all = allocation_.Nodes().size();
  const size_t left = all - std::min(all, ended_.size());
  const bool others_may_come = static_cast<size_t>(plan_.max_nodes) > all;
  if (ended_.empty() || !lost_reason_.empty() || left >= static_cast<size_t>(plan_.min_nodes) ||
      others_may_come || host_->machine().phase() != job::Phase::kRendezvous) {
    return;
  }
  lost_reason_ = absl::StrCat("the agents of ", absl::StrJoin(ended_, ", "),
                              " have ended (srun: ", last_srun_error_, "); the job needs ",
                              plan_.min_nodes, " nodes, and ", left,
                              " of its allocation are left. Give --nnodes MIN:MAX to go on with "
                              "fewer, or requeue the job");
  step_->Signal(SIGTERM);
}

void SlurmLauncher::OnStepEnd(int code) {
  step_code_ = code;
  if (outcome_.has_value() || !lost_reason_.empty()) {
    loop_.Stop();
    return;
  }
  if (joined_.empty()) {
    lost_reason_ =
        absl::StrCat("srun could not start the step of ", allocation_.Nodes().size(),
                     " agents, and ended with code ", code,
                     last_srun_error_.empty() ? "" : absl::StrCat(": ", last_srun_error_),
                     "; its messages are above. The command was: ",
                     absl::StrJoin(SrunCommand(allocation_, plan_, command_), " "));
    loop_.Stop();
    return;
  }
  // The coordinator finds out by itself what that means, but not who comes now.
  lost_reason_ =
      absl::StrCat("the step of the job's agents has ended (srun exited with code ", code,
                   last_srun_error_.empty() ? "" : absl::StrCat(": ", last_srun_error_),
                   "), but the job had not");
  loop_.At(MonoNow() + clocks_.node_lease + kNoticeInterval, [this] { loop_.Stop(); });
}

void SlurmLauncher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kNoticeInterval, [this] {
    PrintWaitNotice();
    ScheduleWaitNotice();
  });
}

void SlurmLauncher::PrintWaitNotice() {
  const JobMachine& job = host_->machine();
  if (job.is_pausing()) {
    output_.Print(std::string(job.reason()));
  } else if (job.phase() == job::Phase::kRendezvous) {
    output_.Print(absl::StrCat(std::string(job.reason()), " (",
                               DescribeWait(job.join_deadline(), plan_.join_timeout, MonoNow()),
                               ")"));
  }
}

int SlurmLauncher::Finish() {
  host_->Shutdown();
  const EndContext context{CliProgram::kFsdprun, plan_, environment_, output_.console(), loop_};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else {
    ReportReason(lost_reason_, context);
  }
  output_.console().Close(MonoNow() + kDrainTimeout);
  return outcome_.has_value() ? outcome_->exit_code : 1;
}

}  // namespace fsdprun
