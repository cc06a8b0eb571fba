// How a launcher ends, and what it tells of that.
#include <algorithm>
#include <optional>

#include "launcher/coordinator/root_cause.h"
#include "launcher/run/job_end.h"
#include "launcher/run/launcher.h"
#include "launcher/run/own_failure.h"
#include "launcher/slurm/requeue.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

/// How long a stalled reader of our output may delay the exit.
constexpr Duration kConsoleDrainTimeout = std::chrono::seconds(60);
constexpr Duration kInterruptedDrainTimeout = std::chrono::seconds(2);
/// How long a file system may delay the exit for the sake of events.

}  // namespace

int Launcher::EndWithoutStart(const absl::Status& why) {
  Print(why.message());
  LeaveDirectory();
  output_.RemoveRunDirs();
  // As in RunProgram().
  return output_.Close(
      MonoNow() + kConsoleDrainTimeout,
      program_ == CliProgram::kFsdpAgent && absl::IsInvalidArgument(why) ? 2 : OwnFailureCode());
}

int Launcher::Finish() {
  const bool is_interrupted =
      outcome_.has_value() && outcome_->kind == OutcomeKind::kStoppedBySignal;
  OutputDrain drain(output_.console(), signals_,
                    MonoNow() + (is_interrupted ? kInterruptedDrainTimeout : kConsoleDrainTimeout));
  link_->Close();
  LeaveDirectory();
  standby_.reset();  // What follows is the end, in order.
  if (host_ != nullptr) {
    host_->Shutdown();
  }
  drain.ShowRemainingOutput(*agent_);
  const int exit_code = ExitCode();
  if (events_ != nullptr) {
    events_->OnEnd(WhyNotToTheEnd());
  }
  event_log_->Finish(MonoNow() + EventLog::kPatience);
  const EndContext context{program_, plan_, environment_, output_.console(), loop_};
  if (outcome_.has_value()) {
    ReportOutcome(*outcome_, context);
  } else if (IsToldElsewhere()) {
    // One report is enough.
  } else if (exit_code != 0 && !agent_message_.empty()) {
    ReportReason(agent_message_, context);
    ReportOwnFailure();
  } else if (exit_code == 0 && agent_->machine().leaves_job()) {
    Print(agent_message_);
  }
  output_.EndRunDirs(exit_code == 0, drain.all_shown());
  if (queue_ != nullptr && host_ != nullptr) {
    queue_->EndRun(outcome_, host_->machine());  // Slurm may kill this process meanwhile.
  }
  drain.WaitForReader();
  // Whoever started this launcher and hosts the coordinator must not take it for the culprit.
  const bool is_no_culprit = IsToldElsewhere() && !plan_.coordinators.empty() && !LeavesJob();
  return output_.Close(drain.deadline(), is_no_culprit ? 0 : exit_code);
}

// Slurm says nothing of a program that ends well, and only the coordinator's launcher can know that
// a node which leaves an unfinished job does not come back. Notices end the job.
bool Launcher::LeavesJob() const {
  const NodeMachine& node = agent_->machine();
  return node.leaves_job() || (own_signal_ != 0 && !IsNotice(own_signal_) && !node.was_released());
}

// The launcher with the coordinator has ended the job, or knows that this node has left it.
bool Launcher::IsToldElsewhere() const {
  return plan_.shares_console && host_ == nullptr && agent_->was_admitted() &&
         !agent_->has_lost_coordinator();
}

// What failed here is not lost with the coordinator.
void Launcher::ReportOwnFailure() {
  if (const auto outcome = OutcomeOfOwnFailures(agent_->machine());
      outcome.has_value() && agent_->has_lost_coordinator()) {
    ReportOutcome(*outcome, {program_, plan_, environment_, output_.console(), loop_});
  }
}

/// Why the workers could not end by themselves, well or badly; empty if they did.
std::string Launcher::WhyNotToTheEnd() const {
  if (outcome_.has_value()) {
    return IsEndOfWorkers(*outcome_) ? "" : outcome_->reason;
  }
  const bool is_cut_off = own_signal_ != 0 || is_job_lost_ || agent_->has_lost_coordinator() ||
                          agent_->machine().was_cut_off();
  const bool was_refused = agent_->machine().generation() == Generation() && agent_exit_ != 0;
  return is_cut_off || was_refused ? agent_message_ : "";
}

int Launcher::ExitCode() const {
  if (outcome_.has_value()) {
    return outcome_->exit_code;
  }
  // Without an outcome the coordinator in this process ended before the job did.
  const int code = host_ != nullptr ? std::max(*agent_exit_, 1) : *agent_exit_;
  return code == 1 ? OwnFailureCode() : code;
}

/// Of a launcher that ends for reasons of its own, not because the job has ended.
int Launcher::OwnFailureCode() const {
  if (plan_.exit_code_style != ExitCodeStyle::kWorker) {
    return 1;
  }
  if (own_signal_ != 0) {
    return contract::kSignalExitBase + own_signal_;
  }
  const bool is_cut_off = agent_ != nullptr && agent_->has_lost_coordinator();
  const auto own = is_cut_off ? OutcomeOfOwnFailures(agent_->machine()) : std::nullopt;
  return own.has_value() ? ExitCodeOfCause(*own) : 1;
}

}  // namespace fsdprun
