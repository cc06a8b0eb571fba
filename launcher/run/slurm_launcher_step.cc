// The srun that starts this launcher's agents: its begin, what it says, its end.
#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/slurm_launcher.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

constexpr Duration kDoubtInterval = std::chrono::seconds(1);
/// More than the node lease: until then the coordinator has found out what the step's end means.
constexpr Duration kLostMargin = std::chrono::seconds(5);

}  // namespace

void SlurmLauncher::StartStep() {
  step_code_.reset();
  ChildCommand::Hooks hooks;
  hooks.on_lines = [this](absl::string_view lines) { OnStepLines(lines); };
  hooks.has_room = [this] { return output_.console().HasRoom(ConsoleStream::kError); };
  hooks.on_end = [this](int code) { OnStepEnd(code); };
  hooks.on_failure = [this](const absl::Status& why) { OnStepNotStarted(why); };
  step_ = std::make_unique<ChildCommand>(loop_, ChildCommand::Reads::kErrors, std::move(hooks));
  step_->Start(SrunCommand(allocation_, plan_, command_),
               SrunEnvironment(environment_, absl::StrJoin(head_.place().targets(), ","),
                               plan_.rdzv_id, head_.place().token.value));
}

void SlurmLauncher::OnStepLines(absl::string_view lines) {
  output_.console().WriteLines(ConsoleStream::kError, lines);
  for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    if (std::string error = ReadSrunError(line); !error.empty()) {
      last_srun_error_ = std::move(error);
    }
    if (const auto ended = ReadTasksEnded(line);
        ended.has_value() && !head_.machine().outcome().has_value()) {
      OnTasksEnded(*ended);
    }
  }
}

// Whoever cannot run a launcher cannot say so: it is said in its place, and the job ends at once
// instead of waiting for that node.
void SlurmLauncher::OnTasksEnded(const SrunTasksEnded& ended) {
  std::set<std::string> nodes(ended.nodes.begin(), ended.nodes.end());
  std::erase_if(nodes, [this](const std::string& name) {
    return std::find(nodes_.begin(), nodes_.end(), name) == nodes_.end();
  });
  ended_.insert(nodes.begin(), nodes.end());
  const auto node = std::find_if(nodes.begin(), nodes.end(), [this](const std::string& name) {
    return !head_.joined().contains(name);
  });
  if (node == nodes.end()) {
    EndIfTooFewAreLeft();
    return;
  }
  head_.CannotRun(*node, absl::StrCat("'", command_.front(),
                                      "' did not get to the coordinator, as srun says: ", ended.how,
                                      "; is it on that node, under the same path?"));
}

// srun starts no agent a second time: a job that needs more nodes than are left, and to which no
// others may come, would wait in vain.
void SlurmLauncher::EndIfTooFewAreLeft() {
  const auto are_enough = [this](const std::set<std::string>& gone) {
    return nodes_.size() - gone.size() >= static_cast<size_t>(head_.machine().min_nodes());
  };
  const bool others_may_come = static_cast<size_t>(head_.machine().max_nodes()) > nodes_.size();
  if (ended_.empty() || !lost_reason_.empty() || are_enough(ended_) || others_may_come ||
      head_.machine().phase() != job::Phase::kRendezvous) {
    return;
  }
  const std::set<std::string> gone = EndedAndGone();
  if (are_enough(gone)) {
    return;
  }
  if (queue_->is_in_doubt()) {  // All nodes may be meant: then the job is stopped, and not lost.
    loop_.Cancel(lost_timer_);
    lost_timer_ = loop_.At(MonoNow() + kDoubtInterval, [this] { EndIfTooFewAreLeft(); });
    return;
  }
  const size_t left = nodes_.size() - gone.size();
  lost_reason_ = absl::StrCat("the agents of ", absl::StrJoin(gone, ", "),
                              " have ended (srun: ", last_srun_error_, "); the job needs ",
                              head_.machine().min_nodes(), " nodes, and ", left,
                              " of its allocation are left. Give --nnodes MIN:MAX to go on with "
                              "fewer, or requeue the job");
  EndStep();
}

// A worker's own srun says the same of its tasks, on the same standard error. Whoever still talks
// to the coordinator has not ended.
std::set<std::string> SlurmLauncher::EndedAndGone() const {
  std::set<std::string> gone = ended_;
  for (const std::string& node : head_.connected()) {
    gone.erase(node);
  }
  return gone;
}

void SlurmLauncher::OnStepEnd(int code) {
  step_code_ = code;
  has_found_srun_ = true;
  loop_.Cancel(stop_timer_);
  loop_.Cancel(lost_timer_);
  if (outcome_.has_value() || !lost_reason_.empty()) {
    loop_.Stop();
    return;
  }
  if (head_.joined().empty()) {
    OnStepWithoutAgents(code);
    return;
  }
  // The coordinator finds out by itself what that means, but not who comes now.
  lost_reason_ =
      absl::StrCat("the step of the job's agents has ended (srun exited with code ", code,
                   last_srun_error_.empty() ? "" : absl::StrCat(": ", last_srun_error_),
                   "), but the job had not");
  lost_timer_ = loop_.At(MonoNow() + clocks_.node_lease + kLostMargin, [this] { loop_.Stop(); });
}

// An srun that was here before is being replaced.
void SlurmLauncher::OnStepNotStarted(const absl::Status& why) {
  step_code_ = 1;
  if ((absl::IsUnavailable(why) || has_found_srun_) && TryAgain(why.message())) {
    return;
  }
  lost_reason_ = absl::StrCat(
      why.message(), !absl::IsNotFound(why)
                         ? ""
                         : ". In a job of Slurm this fsdprun starts its agents with it; put "
                           "Slurm's programs on PATH, or start one fsdprun on each node with "
                           "--rdzv-endpoint");
  loop_.Stop();
}

// The job may have waited in the queue for days: it does not end because the controller is being
// restarted, or fails over to another machine, when it begins.
void SlurmLauncher::OnStepWithoutAgents(int code) {
  const std::string error = std::exchange(last_srun_error_, "");
  if (IsControllerAway(error) && TryAgain(error)) {
    return;
  }
  lost_reason_ = absl::StrCat(
      "srun could not start the step of ", nodes_.size(), " agents, and ended with code ", code,
      error.empty() ? "" : absl::StrCat(": ", error), "; ",
      StepAdvice(error, allocation_.JobName()),
      ". The command was: ", absl::StrJoin(SrunCommand(allocation_, plan_, command_), " "));
  loop_.Stop();
}

// False if that has no purpose any more.
bool SlurmLauncher::TryAgain(absl::string_view why) {
  if (IsStopping(head_.machine()) || MonoNow() + means_.step_pause >= try_step_until_) {
    return false;
  }
  if (why != told_trouble_) {
    told_trouble_ = std::string(why);
    const auto left = std::chrono::ceil<std::chrono::seconds>(try_step_until_ - MonoNow());
    output_.Print(absl::StrCat("srun could not start the step of ", nodes_.size(),
                               " agents yet: ", why, "; trying again for ", left.count(), " s"));
  }
  step_timer_ = loop_.At(MonoNow() + means_.step_pause, [this] { StartStep(); });
  return true;
}

void SlurmLauncher::EndStep() {
  step_stop_.Begin(MonoNow());
  StopStep();
}

// Does what is due, and comes back for what may be due later.
void SlurmLauncher::StopStep() {
  switch (step_stop_.Next(MonoNow())) {
    case StepStop::Action::kNone:
      break;
    case StepStop::Action::kTerminate:
      step_->Signal(SIGTERM);
      break;
    case StepStop::Action::kKill:
      output_.Print(
          "srun has not ended its step on SIGTERM (does Slurm's controller answer?); "
          "killing srun");
      step_->Signal(SIGKILL);
      break;
    case StepStop::Action::kLeave:
      output_.Print(
          absl::StrCat("srun has not ended on SIGKILL; leaving it. If the job stays in "
                       "squeue, end it with: scancel ",
                       allocation_.JobName()));
      loop_.Stop();
      return;
  }
  loop_.Cancel(stop_timer_);
  if (step_stop_.due() != MonoTime::max()) {
    stop_timer_ = loop_.At(step_stop_.due(), [this] { StopStep(); });
  }
}

}  // namespace fsdprun
