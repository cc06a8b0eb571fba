#include <algorithm>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

/// What the end of a finished job takes: releases, and workers that are slow to be reaped.
constexpr Nanos kEndTakes = 15 * kSecond;
/// Of a coordinator that is killed within a step, at each of the step's messages.
constexpr double kDiesBeforeMessage = 0.25;

}  // namespace

class World::JobExecutor : public MachineDriver<JobMachine>::Executor {
 public:
  explicit JobExecutor(World& world) : world_(world) {}

  MonoTime Now() override { return Mono(world_.now_); }
  void Persist(const job::Record& record) override { world_.Keep(record); }
  void WakeAt(MonoTime at) override { world_.ScheduleJobTimer(at); }
  void Send(ToAgent& message) override { world_.SendOrder(message); }
  void Execute(job::PlaceAsked& /*asked*/) override { world_.LookAtPlace(); }
  void Hear(const job::News& news) override {
    std::visit([this](const auto& what) { world_.Hear(what); }, news);
  }
  void OnStepped(const job::Event& /*event*/, const job::Effects& effects) override {
    world_.OnJobStepped(effects);
  }

 private:
  World& world_;
};

void World::StartJob(std::unique_ptr<JobMachine> job) {
  job_ = std::move(job);
  job_executor_ = std::make_unique<JobExecutor>(*this);
  job_driver_ = std::make_unique<MachineDriver<JobMachine>>(*job_, *job_executor_);
}

void World::StepJob(const job::Event& event) {
  if (!coordinator_died_ && !coordinator_is_down_) {
    job_driver_->Feed(event);
  }
}

/// Who is killed when this is kept may have sent some of what follows from it.
void World::Keep(const job::Record& record) {
  KeepRecord(record);
  is_dying_ = std::exchange(dies_with_next_record_, false);
  sends_no_more_ = false;
}

void World::SendOrder(ToAgent& order) {
  CheckRecorded(order);
  referee_.OrderSent(now_, slot_of_.at(order.incarnation.value()), order);
  CheckRelease(order);
  sends_no_more_ = sends_no_more_ || (is_dying_ && random_.Chance(kDiesBeforeMessage));
  if (!sends_no_more_) {
    SendDown(order);
  }
}

void World::OnJobStepped(const job::Effects& effects) {
  job_had_effect_ = !effects.messages.empty() || !effects.news.empty();
  referee_.OrdersGiven(now_);
  if (!has_decided_ && job_->outcome()) {
    has_decided_ = true;
    referee_.Decided(now_, *job_->outcome());
  }
  if (std::exchange(is_dying_, false)) {
    sends_no_more_ = false;
    EndCoordinator();
    return;
  }
  MaybeAnswerDoubt();
  CheckJob();
}

/// A coordinator that took the job over after this step must not use the generation again.
void World::CheckRecorded(const ToAgent& message) {
  if (std::holds_alternative<PrepareGeneration>(message.message) &&
      (!kept_ || message.generation != kept_->generation)) {
    Violate("generation " + std::to_string(message.generation.value()) +
            " is ordered without a record of it");
  }
}

void World::Hear(const job::JobFinished& finished) {
  job_finished_ = true;
  Log("job finished: " + finished.outcome.reason);
}

/// Nothing but a failure, a node that comes or leaves, or an operator stops workers: a coordinator
/// that is killed and started again does not.
void World::Hear(const job::WorldStopping& stopping) {
  if (coordinator_restarts_ > 0 && coordinator_restarts_ == result_.faults && !stop_heard_) {
    Violate("workers are stopped, and nothing has happened but that the coordinator was killed: " +
            stopping.why);
  }
}

void World::Hear(const job::WorldCommitted&) {
  referee_.load().WorldCommitted();
  result_.committed_at = result_.committed_at == 0 ? now_ : result_.committed_at;
}

/// Where the mix has no faults, whatever happens to a node is that it is late.
void World::Hear(const job::NodeLost& lost) {
  referee_.load().NodeLost(lost.name, lost.what, options_.mix.weights.empty());
  if (options_.mix.weights.count(FaultKind::kReplaceAgent) > 0) {
    const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                   [&](const Slot& s) { return s.name == lost.name; });
    referee_.adoption().NodeLost(now_, static_cast<int>(slot - slots_.begin()), lost.what);
  }
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
  if (coordinator_died_ || coordinator_is_down_ ||
      std::holds_alternative<AgentHeartbeat>(report.message)) {
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
    referee_.fence().ReportReceived(report.generation, current,
                                    job_had_effect_ || has_decided_ != had_decided);
  }
  if (is_heard) {
    referee_.ReportHeard(now_, slots_[slot].name, report);
  }
}

/// Whoever is given up as stuck although it could be reached for long was owed a message.
void World::CheckRelease(const ToAgent& message) {
  const auto* release = std::get_if<ReleaseAgent>(&message.message);
  const auto stream = current_stream_.find(message.incarnation.value());
  if (release != nullptr && !job_->outcome() && !job_->IsDrained(message.incarnation) &&
      stream != current_stream_.end()) {
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
  CheckDrainedAreGone();
  if (options_.mix.work_s > 0) {
    At(now_ + InMix(options_.mix.work_s) + kEndTakes, [this] { referee_.DeadlinePassed(now_); });
  }
}

}  // namespace fsdprun::sim
