#include "launcher/chaos/plan/course.h"

#include <csignal>

namespace fsdprun::chaos {

std::vector<Course::Action> Course::OnCampaignEnd(Campaign::End end) {
  if (phase_ != Phase::kFaults) {
    return {};
  }
  switch (end) {
    case Campaign::End::kDone:
      if (options_.starts_job || options_.until_end) {
        phase_ = Phase::kWaiting;
        return {};
      }
      return EndJob(SIGTERM);
    case Campaign::End::kNotSurvived:
    case Campaign::End::kNeverRan:
      return EndJob(SIGTERM);
    default:
      return {};
  }
}

// What was not started here is left alone.
std::vector<Course::Action> Course::EndJob(int signal) {
  if (!options_.starts_job) {
    job_runs_on_ = true;
    return Finish();
  }
  phase_ = Phase::kEnding;
  return {{Action::Kind::kEndJob, signal}};
}

std::vector<Course::Action> Course::OnSignal(int signal) {
  if (phase_ == Phase::kFinished) {
    return {};
  }
  const bool is_first = ++signals_ == 1;
  if (phase_ == Phase::kVerifying) {
    return {is_first ? Action{Action::Kind::kEndVerify, signal}
                     : Action{Action::Kind::kKillVerify}};
  }
  if (!is_first) {
    return {{Action::Kind::kKillJob}};
  }
  std::vector<Action> actions{{Action::Kind::kStopCampaign}};
  for (const Action& action : EndJob(signal)) {
    actions.push_back(action);
  }
  return actions;
}

std::vector<Course::Action> Course::OnCannot() {
  if (phase_ == Phase::kFinished) {
    return {};
  }
  phase_ = Phase::kEnding;
  return {{Action::Kind::kStopCampaign}};
}

std::vector<Course::Action> Course::OnJobEnd(std::optional<int> code, bool is_good) {
  if (phase_ == Phase::kVerifying || phase_ == Phase::kFinished) {
    return {};
  }
  if (options_.has_verify && code == 0 && is_good && !is_interrupted()) {
    phase_ = Phase::kVerifying;
    return {{Action::Kind::kVerify}};
  }
  return Finish();
}

std::vector<Course::Action> Course::OnVerifyEnd() { return Finish(); }

std::vector<Course::Action> Course::Finish() {
  phase_ = Phase::kFinished;
  return {{Action::Kind::kFinish}};
}

}  // namespace fsdprun::chaos
