#include "tests/sim/oracles/overlap_oracle.h"

#include <algorithm>

namespace fsdprun::sim {

namespace {

std::string Describe(const ProcessSighting& process) {
  return "process " + std::to_string(process.pid) + " of generation " +
         std::to_string(process.generation.value()) + " on node " + std::to_string(process.node);
}

}  // namespace

void OverlapOracle::ProcessStarted(Nanos at, const ProcessSighting& process) {
  const bool is_alone =
      count_.empty() || (count_.size() == 1 && count_.begin()->first == process.generation);
  if (!is_alone) {
    for (const auto& [pid, old] : running_) {
      CheckSameNode(old, process);
    }
    OverlapAllOlderThan(at, process.generation);
  }
  ++count_[process.generation];
  Running& running = running_.emplace(process.pid, Running{process}).first->second;
  newest_ = std::max(newest_, process.generation);
  if (process.generation < newest_) {
    running.overlaps_since = at;
    CheckHarmless(at, running);
  }
}

void OverlapOracle::ProcessEnded(Nanos at, int64_t pid) {
  const auto ended = running_.find(pid);
  if (ended == running_.end()) {
    return;
  }
  CheckHarmless(at, ended->second);
  const auto count = count_.find(ended->second.sighting.generation);
  if (--count->second == 0) {
    count_.erase(count);
  }
  running_.erase(ended);
}

void OverlapOracle::BecameUnkillable(int64_t pid) {
  if (const auto process = running_.find(pid); process != running_.end()) {
    process->second.unkillable = true;
  }
}

void OverlapOracle::BecameKillable(int64_t pid) {
  if (const auto process = running_.find(pid); process != running_.end()) {
    process->second.unkillable = false;
  }
}

void OverlapOracle::AgentDied(Nanos at, uint32_t life) {
  for (auto& [pid, process] : running_) {
    if (process.sighting.life == life) {
      CheckHarmless(at, process);
      process.agent_died_at = at;
    }
  }
}

void OverlapOracle::HearingChanges(Nanos at, int node) {
  for (const auto& [pid, process] : running_) {
    if (process.sighting.node == node) {
      CheckHarmless(at, process);
    }
  }
}

void OverlapOracle::HearingChangesEverywhere(Nanos at) {
  for (const auto& [pid, process] : running_) {
    CheckHarmless(at, process);
  }
}

void OverlapOracle::JobEnded(Nanos at) {
  newest_ = Generation(std::numeric_limits<uint64_t>::max());
  OverlapAllOlderThan(at, newest_);
}

void OverlapOracle::OverlapAllOlderThan(Nanos at, Generation g) {
  for (auto& [pid, old] : running_) {
    if (old.sighting.generation < g) {
      old.overlaps_since = std::min(old.overlaps_since, at);
      CheckHarmless(at, old);
    }
  }
}

void OverlapOracle::CheckSameNode(const Running& old, const ProcessSighting& started) {
  const bool other_generation = old.sighting.generation != started.generation;
  const bool left_behind = old.unkillable && old.sighting.life != started.life;
  if (old.sighting.node == started.node && other_generation && !left_behind) {
    Complain(Describe(started) + " was started beside " + Describe(old.sighting));
  }
}

void OverlapOracle::CheckHarmless(Nanos at, const Running& running) {
  if (running.overlaps_since == kForever || running.unkillable) {
    return;
  }
  Nanos may_run_until = kForever;
  if (running.agent_died_at != kForever) {
    may_run_until = running.agent_died_at + kOrphansEndWithin;
  } else if (const Nanos since = hearing_.Since(at, running.sighting.node); since != kForever) {
    may_run_until = since + kStopsWithin;
  } else if (const Nanos unreachable = hearing_.UnreachableSince(at, running.sighting.node);
             unreachable != kForever) {
    may_run_until = unreachable + alone_bound_ + kStopsWithin;
  }
  if (may_run_until != kForever) {
    CountQuestion();
  }
  if (at > may_run_until) {
    Complain(Describe(running.sighting) +
             " overlaps a newer world although its node could have ended it " +
             std::to_string((at - may_run_until) / kMilli) + " ms ago");
  }
}

}  // namespace fsdprun::sim
