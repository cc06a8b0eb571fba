#include "launcher/chaos/plan/course.h"

#include <csignal>

namespace fsdprun::chaos {
namespace {

/// timeout(1) tells its child and then its group, a shell and the kernel both tell of a terminal
/// that closes, and a service manager sends SIGTERM and SIGHUP.
constexpr Duration kOfOneSender = std::chrono::seconds(1);

bool IsNotice(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

/// Of a limit, a launcher does not know that it is to end.
int ToEndBy(int signal) { return signal == SIGALRM || signal == SIGXCPU ? SIGTERM : signal; }

}  // namespace

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

std::vector<Course::Action> Course::OnSignal(int signal, MonoTime now) {
  if (phase_ == Phase::kFinished) {
    return {};
  }
  if (IsNotice(signal) && !options_.is_in_slurm) {
    return OnNotice(signal);
  }
  const bool is_first = !signalled_at_.has_value();
  if (!is_first && !IsSecond(signal, now)) {
    return {};
  }
  signalled_at_ = now;
  if (phase_ == Phase::kVerifying) {
    return {is_first ? Action{Action::Kind::kEndVerify, ToEndBy(signal)}
                     : Action{Action::Kind::kKillVerify}};
  }
  if (!is_first) {
    return {{Action::Kind::kKillJob}};
  }
  std::vector<Action> actions{{Action::Kind::kStopCampaign}};
  for (const Action& action : EndJob(ToEndBy(signal))) {
    actions.push_back(action);
  }
  return actions;
}

bool Course::IsSecond(int signal, MonoTime now) const {
  const bool is_wanted =
      signal == SIGINT || signal == SIGQUIT || (signal == SIGTERM && !options_.is_in_slurm);
  return is_wanted && now - *signalled_at_ >= kOfOneSender;
}

// What a launcher does about it is for whoever has started it to say.
std::vector<Course::Action> Course::OnNotice(int signal) const {
  if (!options_.starts_job || phase_ == Phase::kVerifying) {
    return {};
  }
  return {{Action::Kind::kPassSignal, signal}};
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
