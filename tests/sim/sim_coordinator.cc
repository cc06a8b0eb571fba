#include <algorithm>
#include <utility>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

/// What the end of a finished job takes: farewells, and workers that are slow to be reaped.
constexpr Nanos kEndTakes = 15 * kSecond;

/// True for reports that mean something only for the generation they are about.
bool IsAboutGeneration(const FromAgent& report) {
  if (const auto* fault = std::get_if<NodeFaulted>(&report.message)) {
    return fault->kind != CauseKind::kNodeWedged;  // which is about the node
  }
  return !std::holds_alternative<AgentHeartbeat>(report.message) &&
         !std::holds_alternative<AgentJoined>(report.message) &&
         !std::holds_alternative<AgentLeft>(report.message);
}

}  // namespace

void World::StepJob(const job::Event& event) {
  if (coordinator_died_) {
    return;
  }
  job_->Step(event, Mono(now_), job_effects_);
  for (job::Action& action : job_effects_.actions) {
    if (auto* to_agent = std::get_if<ToAgent>(&action)) {
      referee_.OrderSent(now_, slot_of_.at(to_agent->incarnation.value()), *to_agent);
      CheckRelease(*to_agent);
      SendDown(*to_agent);
    } else {
      job_finished_ = true;
      Log("job finished: " + std::get<job::FinishJob>(action).outcome.reason);
    }
  }
  if (!has_decided_ && job_->outcome()) {
    has_decided_ = true;
    referee_.Decided(now_, *job_->outcome());
  }
  ScheduleJobTimer(job_effects_.wake_at);
  CheckJob();
}

void World::StepJobWithReport(const job::Event& event) {
  const FromAgent& report = std::get<FromAgent>(event);
  if (coordinator_died_ || std::holds_alternative<AgentHeartbeat>(report.message)) {
    StepJob(event);
    return;
  }
  const bool is_fenced = IsFenced(report);
  const Generation current = job_->generation();
  const job::Phase phase = job_->phase();
  const uint64_t dropped = job_->stale_dropped();
  const job::Node* sender = job_->nodes().Find(report.incarnation);
  const std::string name = sender != nullptr ? sender->info.name : "";
  StepJob(event);
  const bool had_effect = job_->stale_dropped() == dropped || job_->phase() != phase;
  if (is_fenced) {
    referee_.fence().ReportReceived(report.generation, current, had_effect);
  }
  if (had_effect) {
    referee_.ReportHeard(name, report);
  }
}

/// Only the generation's own world may heed the report; a node that came back with an older
/// generation is waited for, and its last word about that one is heard.
bool World::IsFenced(const FromAgent& report) const {
  const job::Node* sender = job_->nodes().Find(report.incarnation);
  const bool is_awaited = sender != nullptr && sender->state == job::NodeState::kCleaning &&
                          std::holds_alternative<WorkersStopped>(report.message);
  return IsAboutGeneration(report) && !is_awaited;
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

bool World::JobIsSettled() const {
  if (job_->phase() == job::Phase::kFinished || coordinator_died_) {
    return true;
  }
  if (job_->phase() != job::Phase::kRunning || stop_heard_) {
    return false;
  }
  for (const job::Node& node : job_->nodes()) {
    if (node.state == job::NodeState::kCommitted) {
      return false;
    }
  }
  return true;
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
  if (!JobIsSettled() && now_ < WaitsForNodesUntil()) {
    At(WaitsForNodesUntil(), [this] { CheckSettled(); });
  } else if (!JobIsSettled()) {
    Violate(stop_heard_ ? "the job goes on although an operator has stopped it long ago"
                        : "the job is neither running nor finished although faults ended long ago");
  } else if (options_.mix.work_s > 0) {
    At(now_ + InMix(options_.mix.work_s) + kEndTakes, [this] { referee_.DeadlinePassed(); });
  }
}

}  // namespace fsdprun::sim
