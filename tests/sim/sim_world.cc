#include "tests/sim/sim_world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace fsdprun::sim {

namespace {

std::string NameOf(int slot) { return "node-" + std::to_string(slot); }

/// How many of the first slots a scheduler has given to the job.
int AllocatedSlots(const SimOptions& options) {
  return static_cast<int>(options.mix.allocated * (options.nodes + options.mix.spares));
}

JobSpec MakeJobSpec(const SimOptions& options) {
  JobSpec spec;
  spec.may_be_taken_over = options.mix.weights.count(FaultKind::kRestartCoordinator) != 0;
  spec.max_nodes = options.nodes;
  spec.min_nodes = std::max(1, static_cast<int>(options.nodes * options.mix.min_fraction));
  spec.max_restarts = options.mix.max_restarts;
  spec.stop_grace = Duration(static_cast<Nanos>(options.mix.stop_grace_s * kSecond));
  spec.prepare_timeout = Duration(static_cast<Nanos>(options.mix.prepare_timeout_s * kSecond));
  spec.join_timeout = Duration(static_cast<Nanos>(options.mix.join_timeout_s * kSecond));
  spec.node_ranks_bind = options.mix.preferred_ranks == 0 && !spec.may_be_taken_over;
  spec.restart_backoff = Duration(static_cast<Nanos>(options.mix.restart_backoff_s * kSecond));
  spec.max_restart_backoff =
      Duration(static_cast<Nanos>(options.mix.max_restart_backoff_s * kSecond));
  spec.quarantine_after = options.mix.quarantine_after;
  spec.quarantine_window = Duration(static_cast<Nanos>(options.mix.quarantine_window_s * kSecond));
  spec.place_sure_for = Duration(static_cast<Nanos>(options.mix.place_sure_s * kSecond));
  spec.suspect_after = ClocksOf(options.mix).suspect_after;
  spec.dead_after = ClocksOf(options.mix).node_lease;
  for (int slot = 0; slot < AllocatedSlots(options); ++slot) {
    spec.signalled_together.insert(NameOf(slot));
  }
  return spec;
}

OutcomeOracle::Job MakeExpectations(const JobSpec& spec) {
  return {spec.min_nodes, spec.max_restarts, spec.join_timeout.count()};
}

/// A lease may be extended once by as much.
RecoveryOracle::Job MakeRecoveryTimes(const JobSpec& spec) {
  return {.min_nodes = spec.min_nodes,
          .max_nodes = spec.max_nodes,
          .stop_grace = spec.stop_grace.count(),
          .stop_margin = spec.stop_margin.count(),
          .lease = 2 * spec.dead_after.count(),
          .prepare_timeout = spec.prepare_timeout.count(),
          .last_call = spec.last_call.count(),
          .restart_backoff = spec.max_restart_backoff.count(),
          .place_looks = spec.place_sure_for > Duration{} ? 2 * kLongestLook : 0};
}

SignalOracle::Job MakeSignalRules(const SimOptions& options) {
  const JobSpec spec = MakeJobSpec(options);
  SignalOracle::Job job{.allocation = {},
                        .spread = spec.signal_spread.count(),
                        .lease = spec.dead_after.count(),
                        .longest_lease = 2 * spec.dead_after.count(),
                        .stop = (spec.stop_grace + spec.stop_margin).count()};
  for (int slot = 0; slot < AllocatedSlots(options); ++slot) {
    job.allocation.insert(slot);
  }
  return job;
}

/// `grace` without a coordinator, how long NodeMachine waits for what it kills, the keeper's last
/// sweep, and what a connection attempt may take in between.
Nanos AloneBound(Duration grace) {
  constexpr Nanos kTransport = kSilence + 500 * kMilli;
  constexpr Nanos kKillWait = 300 * kMilli;
  return grace.count() + kKillWait + kTransport;
}

/// The longest that the coordinator waits for one answer, or for one after the other.
Nanos StuckBound(const JobSpec& spec) {
  const Duration margin = spec.stop_margin + std::chrono::seconds(2);
  return (spec.prepare_timeout + spec.stop_grace + margin).count();
}

}  // namespace

World::World(SimOptions options)
    : options_(std::move(options)),
      random_(options_.seed * 0x9e3779b97f4a7c15 + 1),
      looks_(~options_.seed * 0x9e3779b97f4a7c15 + 1),
      referee_(MakeExpectations(MakeJobSpec(options_)), MakeRecoveryTimes(MakeJobSpec(options_)),
               MakeSignalRules(options_),
               {.alone = AloneBound(CoordinatorGrace(options_.mix)),
                .ended = AloneBound(NodeSpec().coordinator_ended_grace),
                .stuck = StuckBound(MakeJobSpec(options_)),
                .quarantine_after = options_.mix.quarantine_after,
                .quarantine_window = InMix(options_.mix.quarantine_window_s),
                .place_sure = InMix(options_.mix.place_sure_s),
                .adoption_lease = MakeJobSpec(options_).dead_after.count()}) {
  StartJob(std::make_unique<JobMachine>(Spec()));
  allocated_ = AllocatedSlots(options_);
  place_held_until_ = InMix(options_.mix.place_sure_s);
  const bool ranks_are_static =
      options_.mix.static_ranks > 0 && random_.Chance(options_.mix.static_ranks);
  const bool ranks_are_preferred =
      options_.mix.preferred_ranks > 0 && random_.Chance(options_.mix.preferred_ranks);
  for (int i = 0; i < options_.nodes + options_.mix.spares; ++i) {
    Slot slot;
    slot.name = NameOf(i);
    if (ranks_are_static) {
      slot.node_rank = i % options_.nodes;
    }
    if (ranks_are_preferred) {
      slot.preferred_rank = static_cast<int>(random_.Below(static_cast<uint64_t>(options_.nodes)));
    }
    slots_.push_back(std::move(slot));
    At(random_.Between(0, InMix(options_.mix.start_within_s)), [this, i] { StartAgent(i); });
  }
  if (options_.mix.lacks_program > 0 && random_.Chance(options_.mix.lacks_program)) {
    slots_[random_.Below(slots_.size())].lacks_program = true;
    referee_.ProgramIsMissing();
  }
  if (!options_.mix.weights.empty()) {
    ScheduleFault();
  }
  StarveCoordinator();
  const Nanos heal = static_cast<Nanos>(options_.mix.faults_for_s * kSecond);
  At(heal, [this] { Heal(); });
  At(heal + static_cast<Nanos>(options_.mix.settle_s * kSecond), [this] { CheckSettled(); });
}

JobSpec World::Spec() const { return MakeJobSpec(options_); }

void World::Heal() {
  healed_ = true;
  for (Slot& slot : slots_) {
    slot.up_cut_until = slot.down_cut_until = slot.clogged_until = slot.no_keeper_until = 0;
  }
  for (const std::unique_ptr<Agent>& agent : agents_) {
    agent->armed = {};
  }
  referee_.Healed(now_);
  UnstallAll();
  Log("everything heals");
}

/// By then even a job that waits for nodes in vain has ended, and every agent that looks for a
/// coordinator in vain, and everything with them.
Nanos World::Horizon() const {
  constexpr double kSlack = 120;
  const FaultMix& mix = options_.mix;
  const Nanos longest_wait =
      std::max<Nanos>(InMix(mix.join_timeout_s), Nanos{NodeSpec{}.connect_timeout.count()});
  return InMix(mix.faults_for_s + mix.settle_s + mix.work_s + kSlack) + longest_wait;
}

SimResult World::Run(double hours) {
  const Nanos limit = hours > 0 ? static_cast<Nanos>(hours * 3600 * kSecond) : Horizon();
  while (!queue_.empty() && result_.violation.empty()) {
    const Item item =
        queue_.Pop([this](const Item& soon, int buckets_ahead) { Prefetch(soon, buckets_ahead); });
    if (item.at > limit) {
      if (hours <= 0) {
        CheckEnd();  // timers of what has long ended may be left
      }
      break;
    }
    now_ = item.at;
    ++result_.items;
    Fire(item);
    if (const std::string& complaint = referee_.complaint(); !complaint.empty()) {
      Violate(complaint);
    }
  }
  if (result_.violation.empty() && queue_.empty()) {
    CheckEnd();
  }
  result_.ended_at = now_;
  result_.restarts = job_->restarts_used();
  result_.membership_changes = job_->membership_changes();
  result_.formations = static_cast<int>(worlds_.size());
  result_.stale_dropped = job_->stale_dropped();
  result_.outcome = job_->outcome();
  result_.questions = referee_.questions();
  result_.questions["takeovers"] = worlds_taken_over_;
  return result_;
}

void World::CheckEnd() {
  for (uint32_t i = 0; i < agents_.size(); ++i) {
    if (AnyAlive(i) || agents_[i]->alive) {
      Violate("a process of " + slots_[agents_[i]->slot].name + " outlives the job");
    }
  }
  if (!job_finished_ && !coordinator_died_) {
    Violate("nothing is left to happen, but the job has not finished");
  }
}

/// Thousands of agents do not fit into the cache; whose turn comes is known ahead. First the agent,
/// then what it points to.
void World::Prefetch(const Item& item, int buckets_ahead) const {
  constexpr size_t kLine = 64;
  constexpr size_t kLinesOfABeat = 5;
  if (item.kind != ItemKind::kNodeTimer) {
    return;
  }
  const Agent* agent = agents_[item.index].get();
  if (buckets_ahead > 1) {
    for (size_t i = 0; i < kLinesOfABeat; ++i) {
      __builtin_prefetch(reinterpret_cast<const char*>(agent) + i * kLine);
    }
    return;
  }
  __builtin_prefetch(&slots_[agent->slot]);
  if (agent->stream != 0) {
    __builtin_prefetch(&streams_[agent->stream - 1]);
  }
}

void World::Fire(const Item& item) {
  switch (item.kind) {
    case ItemKind::kNodeTimer: {
      Agent& agent = *agents_[item.index];
      if (agent.timer_at != item.at || !agent.alive) {
        return;
      }
      if (agent.paused_until > now_) {
        agent.timer_at = agent.paused_until;
        queue_.Push(agent.timer_at, ItemKind::kNodeTimer, item.index);
        return;
      }
      agent.timer_at = 0;
      StepAgent(item.index, node::TimerDue{});
      return;
    }
    case ItemKind::kJobTimer:
      if (job_timer_at_ != item.at) {
        return;
      }
      if (coordinator_paused_until_ > now_) {
        job_timer_at_ = coordinator_paused_until_;
        queue_.Push(job_timer_at_, ItemKind::kJobTimer, 0);
        return;
      }
      job_timer_at_ = 0;
      StepJob(job::TimerDue{});
      return;
    case ItemKind::kDeliverUp:
      DeliverUp(item.index);
      return;
    case ItemKind::kDeliverDown:
      DeliverDown(item.index);
      return;
    case ItemKind::kCall: {
      const std::function<void()> call = std::move(calls_[item.index]);
      free_calls_.push_back(item.index);
      call();
      return;
    }
  }
}

void World::At(Nanos when, std::function<void()> call) {
  uint32_t index = 0;
  if (free_calls_.empty()) {
    index = static_cast<uint32_t>(calls_.size());
    calls_.push_back(std::move(call));
  } else {
    index = free_calls_.back();
    free_calls_.pop_back();
    calls_[index] = std::move(call);
  }
  queue_.Push(when, ItemKind::kCall, index);
}

Nanos World::Virtual(MonoTime t) { return t.time_since_epoch().count(); }

void World::Violate(const std::string& what) {
  if (result_.violation.empty()) {
    char at[32];
    std::snprintf(at, sizeof at, "%.6f s", static_cast<double>(now_) / kSecond);
    result_.violation = "at " + std::string(at) + ": " + what + " [" +
                        std::string(job::PhaseName(job_->phase())) + ": " +
                        std::string(job_->reason()) + "]";
  }
}

void World::Log(const std::string& line) {
  if (options_.log) {
    std::printf("%12.6f  %s\n", static_cast<double>(now_) / kSecond, line.c_str());
  }
}

}  // namespace fsdprun::sim
