#include "tests/sim/oracles/fault_ledger.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace fsdprun::sim {

namespace {

/// How long the notice of an isolated fault may be on its way, until the stop that it causes.
constexpr Nanos kNoticeTakes = 4 * kSecond;
/// How long a node that comes or leaves may be the reason of a stop.
constexpr Nanos kMembershipTakes = 2 * kSecond;

}  // namespace

bool IsChargeable(FaultKind kind) {
  switch (kind) {
    case FaultKind::kHangOnTerm:
    case FaultKind::kMassLeave:
    case FaultKind::kDuplicateAgent:
    case FaultKind::kOperatorStop:
    case FaultKind::kRestartCoordinator:
    case FaultKind::kSignalNodes:
    case FaultKind::kAskForRestart:
    case FaultKind::kDrainNode:
    case FaultKind::kScaleJob:
      return false;
    default:
      return true;
  }
}

FaultLedger::FaultId FaultLedger::Add(InjectedFault fault) {
  fault.until = std::max(fault.at, fault.until);
  if (fault.kind == FaultKind::kRestartCoordinator) {
    for (InjectedFault& earlier : faults_) {
      const bool may_be_unknown = earlier.until + aftermath_ >= fault.at;
      earlier.until = may_be_unknown ? std::max(earlier.until, fault.until) : earlier.until;
    }
    successor_knows_all_at_ = std::max(successor_knows_all_at_, fault.until);
  } else if (fault.at < successor_knows_all_at_) {
    fault.until = std::max(fault.until, successor_knows_all_at_);
  }
  faults_.push_back(std::move(fault));
  return faults_.size() - 1;
}

void FaultLedger::AddVictim(int64_t pid, FaultId fault) { victims_.emplace(pid, fault); }

void FaultLedger::WorldOrdered(Nanos at, Generation g, int node) {
  if (worlds_.count(g) == 0) {
    JobDecided(at);
    worlds_[g].began = at;
  }
  worlds_[g].nodes.insert(node);
}

void FaultLedger::StopOrdered(Nanos at, Generation g) {
  const auto world = worlds_.find(g);
  if (world != worlds_.end()) {
    world->second.first_stop = std::min(world->second.first_stop, at);
  }
}

void FaultLedger::WorkersTold(Nanos at, Generation g, int node) {
  const auto world = worlds_.find(g);
  if (world != worlds_.end()) {
    world->second.told.emplace(node, at);
  }
}

void FaultLedger::MembershipChanged(Nanos at) { membership_changes_.push_back(at); }

void FaultLedger::PlaceFound(Nanos at) {
  const bool somebody_waits = !membership_changes_.empty() && !worlds_.empty() &&
                              membership_changes_.back() > worlds_.rbegin()->second.began;
  if (somebody_waits) {
    MembershipChanged(at);
  }
}

void FaultLedger::JobDecided(Nanos at) {
  if (!worlds_.empty()) {
    Span& last = worlds_.rbegin()->second;
    last.ended = std::min(last.ended, at);
  }
}

std::optional<FaultLedger::FaultId> FaultLedger::CulpritOf(int64_t pid) const {
  const auto victim = victims_.find(pid);
  return victim == victims_.end() ? std::nullopt : std::optional<FaultId>(victim->second);
}

bool FaultLedger::MayFail(const InjectedFault& fault, Generation g) const {
  if (!IsChargeable(fault.kind)) {
    return false;
  }
  if (fault.generation != Generation{}) {
    return fault.generation == g;
  }
  const auto world = worlds_.find(g);
  // A world whose only member is lost is told by no order that it is over.
  return world != worlds_.end() && fault.at <= world->second.ended &&
         (fault.until + aftermath_ >= world->second.StoppedAt() ||
          (world->second.first_stop == kForever && world->second.nodes.size() == 1)) &&
         (fault.node == kCoordinatorNode || world->second.nodes.count(fault.node) != 0);
}

bool FaultLedger::MayBeRoot(const InjectedFault& fault, Generation g) const {
  const auto world = worlds_.find(g);
  if (world == worlds_.end() || !MayFail(fault, g)) {
    return false;
  }
  const bool may_be_late =
      fault.signal == SIGKILL || fault.signal == SIGBUS || fault.kind == FaultKind::kConfigExit;
  const auto told = world->second.told.find(fault.node);
  return fault.pid == 0 || may_be_late || told == world->second.told.end() ||
         fault.at <= told->second;
}

bool FaultLedger::MayHaveChangedMembers(Generation g) const {
  const auto world = worlds_.find(g);
  if (world == worlds_.end()) {
    return false;
  }
  const Nanos stopped_at = world->second.StoppedAt();
  return std::any_of(
             membership_changes_.begin(), membership_changes_.end(),
             [&](Nanos at) { return at <= stopped_at && at + kMembershipTakes >= stopped_at; }) ||
         std::any_of(faults_.begin(), faults_.end(), [&](const InjectedFault& fault) {
           return fault.generation == Generation{} && IsChargeable(fault.kind) &&
                  fault.at <= stopped_at && fault.until + aftermath_ >= stopped_at;
         });
}

bool FaultLedger::MayHaveFailed(Generation g) const {
  return std::any_of(faults_.begin(), faults_.end(),
                     [&](const InjectedFault& fault) { return MayFail(fault, g); });
}

const InjectedFault* FaultLedger::MustHaveFailed(Generation g) const {
  const auto world = worlds_.find(g);
  if (world == worlds_.end() || g == Generation{}) {
    return nullptr;
  }
  for (const InjectedFault& fault : faults_) {
    if (fault.breaks == g && world->second.first_stop > fault.at && IsIsolated(fault)) {
      return &fault;
    }
  }
  return nullptr;
}

bool FaultLedger::IsDisturbed(int node, Nanos from, Nanos to) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const InjectedFault& fault) {
    return fault.generation == Generation{} && IsChargeable(fault.kind) &&
           (fault.node == node || fault.node == kCoordinatorNode) && fault.at <= to &&
           fault.until + aftermath_ >= from;
  });
}

/// Nothing but `fault` can have stopped its generation meanwhile.
bool FaultLedger::IsIsolated(const InjectedFault& fault) const {
  const Nanos from = fault.at - kMembershipTakes;
  const Nanos to = fault.at + kNoticeTakes;
  for (const InjectedFault& other : faults_) {
    const Nanos end = other.generation == Generation{} ? other.until + aftermath_ : other.until;
    if (&other != &fault && other.at <= to && end >= from) {
      return false;
    }
  }
  return std::none_of(membership_changes_.begin(), membership_changes_.end(),
                      [&](Nanos at) { return at >= from && at <= to; });
}

}  // namespace fsdprun::sim
