#include <algorithm>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

/// What the end of a finished job takes: releases, and workers that are slow to be reaped.
constexpr Nanos kEndTakes = 15 * kSecond;

}  // namespace

void World::StepJob(const job::Event& event) {
  if (coordinator_died_) {
    return;
  }
  job_->Step(event, Mono(now_), job_effects_);
  if (job_effects_.persist) {
    recorded_ = job_effects_.persist->generation;
  }
  for (ToAgent& message : job_effects_.messages) {
    CheckRecorded(message);
    referee_.OrderSent(now_, slot_of_.at(message.incarnation.value()), message);
    CheckRelease(message);
    SendDown(message);
  }
  for (const job::News& news : job_effects_.news) {
    std::visit([this](const auto& what) { Hear(what); }, news);
  }
  referee_.OrdersGiven(now_);
  if (!has_decided_ && job_->outcome()) {
    has_decided_ = true;
    referee_.Decided(now_, *job_->outcome());
  }
  MaybeAnswerDoubt();
  ScheduleJobTimer(job_effects_.wake_at);
  CheckJob();
}

/// A coordinator that took the job over after this step must not use the generation again.
void World::CheckRecorded(const ToAgent& message) {
  if (std::holds_alternative<PrepareGeneration>(message.message) &&
      message.generation != recorded_) {
    Violate("generation " + std::to_string(message.generation.value()) +
            " is ordered without a record of it");
  }
}

void World::Hear(const job::JobFinished& finished) {
  job_finished_ = true;
  Log("job finished: " + finished.outcome.reason);
}

/// As long as it is out of reach.
void World::LookAtPlace() {
  const Nanos takes =
      looks_.Chance(0.2) ? looks_.Between(kSecond, kLongestLook) : looks_.Between(0, 100 * kMilli);
  At(now_ + takes, [this, looked_at = now_] { AnswerPlace(looked_at); });
}

/// A coordinator that is stopped hears of it when it goes on.
void World::AnswerPlace(Nanos looked_at) {
  constexpr Nanos kPause = kSecond;
  if (coordinator_paused_until_ > now_) {
    At(coordinator_paused_until_, [this, looked_at] { AnswerPlace(looked_at); });
    return;
  }
  if (!job_->awaits_place()) {
    return;
  }
  if (place_out_of_reach_until_ > now_) {
    StepJob(job::PlaceUnknown{"the place is out of reach"});
    At(now_ + kPause, [this] { LookAtPlace(); });
  } else if (place_is_taken_) {
    StepJob(job::HostReplaced{kPlaceTaken});
  } else {
    place_held_until_ = std::max(place_held_until_, looked_at + InMix(options_.mix.place_sure_s));
    referee_.PlaceLookedUp(now_, looked_at);
    StepJob(job::PlaceChecked{Mono(looked_at)});
  }
}

void World::TellOfTakenPlace() {
  if (coordinator_paused_until_ > now_) {
    At(coordinator_paused_until_, [this] { TellOfTakenPlace(); });
  } else {
    StepJob(job::HostReplaced{kPlaceTaken});
  }
}

void World::StepJobWithReport(const job::Event& event) {
  const FromAgent& report = std::get<FromAgent>(event);
  if (coordinator_died_ || std::holds_alternative<AgentHeartbeat>(report.message)) {
    StepJob(event);
    return;
  }
  const int slot = slot_of_.at(report.incarnation.value());
  const Generation current = referee_.current_world().generation();
  const bool is_stale = referee_.current_world().IsStale(report);
  const bool is_heard = referee_.current_world().IsOfMember(report);
  const bool had_decided = has_decided_;
  if (is_stale) {
    // A step of its own for what is due anyway: what follows is then the report's doing.
    StepJob(job::AgentStreamLost{});
  }
  referee_.ReportArrives(now_, slot, report);
  StepJob(event);
  if (is_stale) {
    const bool had_effect =
        !job_effects_.messages.empty() || !job_effects_.news.empty() || has_decided_ != had_decided;
    referee_.fence().ReportReceived(report.generation, current, had_effect);
  }
  if (is_heard) {
    referee_.ReportHeard(now_, slots_[slot].name, report);
  }
}

/// Whoever is given up as stuck although it could be reached for long was owed a message.
void World::CheckRelease(const ToAgent& message) {
  const auto* release = std::get_if<ReleaseAgent>(&message.message);
  const auto stream = current_stream_.find(message.incarnation.value());
  if (release != nullptr && !job_->outcome() && stream != current_stream_.end()) {
    referee_.GivenUp(now_, agents_[streams_[stream->second].agent]->slot, release->reason);
  }
}

void World::ScheduleJobTimer(MonoTime wake) {
  if (wake == MonoTime::max()) {
    job_timer_at_ = 0;
    return;
  }
  const Nanos at = std::max(Virtual(wake), now_);
  if (at != job_timer_at_) {
    job_timer_at_ = at;
    queue_.Push(at, ItemKind::kJobTimer, 0);
  }
}

void World::CheckJob() {
  if (options_.log && job_->reason() != last_reason_) {
    last_reason_ = std::string(job_->reason());
    Log("job: " + last_reason_);
  }
  if (job_->revision() < checked_revision_ + static_cast<uint64_t>(options_.check_every)) {
    return;
  }
  checked_revision_ = job_->revision();
  const std::string broken = job_->CheckInvariants();
  if (!broken.empty()) {
    Violate("JobMachine: " + broken);
  }
}

/// The time until which a job that lacks nodes for good may wait for them.
Nanos World::WaitsForNodesUntil() const {
  const bool lacks_nodes =
      std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.is_scrapped; });
  const Nanos end =
      InMix(options_.mix.faults_for_s + options_.mix.settle_s + options_.mix.join_timeout_s) +
      kEndTakes;
  return lacks_nodes ? end : 0;
}

void World::CheckSettled() {
  if (!referee_.IsSettled() && now_ < WaitsForNodesUntil()) {
    At(WaitsForNodesUntil(), [this] { CheckSettled(); });
    return;
  }
  referee_.SettlingTimePassed();
  if (options_.mix.work_s > 0) {
    At(now_ + InMix(options_.mix.work_s) + kEndTakes, [this] { referee_.DeadlinePassed(now_); });
  }
}

}  // namespace fsdprun::sim
