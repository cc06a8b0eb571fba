#include "launcher/coordinator/world.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/check.h"
#include "launcher/coordinator/seconds_text.h"

namespace fsdprun {

// --- Orders

World::Orders World::Form(const std::vector<Candidate>& chosen, const WorldNumbers& numbers,
                          MonoTime now) {
  const std::vector<RankAssignment> assignments = AssignRanks(chosen, numbers);
  phase_ = Phase::kPreparing;
  generation_ = numbers.generation;
  world_size_ = assignments.front().world_size;
  ++changes_;
  succeeded_workers_ = gone_succeeded_ = 0;
  ends_ = {.workers = world_size_};
  has_progress_ = false;
  store_ = {};
  committed_at_ = MonoTime::max();
  failures_.Clear();
  members_.clear();
  Orders orders;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const NodeInfo& node = chosen[i].node;
    members_.push_back(std::make_unique<Member>(
        Member{.incarnation = node.incarnation,
               .name = node.name,
               .state = MemberState::kPreparing,
               .assignment = assignments[i],
               .succeeded_count = 0,
               .exited = std::vector<bool>(node.local_world_size, false)}));
    orders.push_back(Order(*members_.back(), PrepareGeneration{assignments[i]}));
  }
  std::sort(members_.begin(), members_.end(),
            [](const auto& a, const auto& b) { return a->incarnation < b->incarnation; });
  Await(now + spec_.prepare_timeout);
  return orders;
}

World::Orders World::Commit(MonoTime now) {
  FSDPRUN_CHECK(store_.port > 0, "group rank 0 has named the store");
  ++changes_;
  phase_ = Phase::kRunning;
  committed_at_ = now;
  Orders orders;
  for (const auto& member : members_) {
    member->state = MemberState::kCommitted;
    orders.push_back(Order(*member, CommitGeneration{store_}));
  }
  Await(now + spec_.start_timeout);
  return orders;
}

World::Orders World::BeginStop(Stop stop, MonoTime now) {
  ++changes_;
  phase_ = Phase::kStopping;
  stop_ = std::move(stop);
  kill_at_ = now + stop_.grace;
  Orders orders;
  for (const auto& member : members_) {
    member->state = MemberState::kStopping;
    orders.push_back(Order(*member, StopWorkers{stop_.signal, stop_.grace, stop_.why}));
  }
  Await(now + stop_.grace + spec_.stop_margin);
  return orders;
}

void World::CountStopAsFailure() {
  if (stop_.kind == job::StopKind::kMembership) {
    ++changes_;
    stop_.kind = job::StopKind::kFailure;
  }
}

World::Orders World::ShortenGrace(Duration grace, MonoTime now) {
  if (grace >= stop_.grace) {
    return {};
  }
  ++changes_;
  stop_.grace = grace;
  kill_at_ = std::min(kill_at_, now + grace);
  deadline_ = std::min(deadline_, now + grace + spec_.stop_margin);
  Orders orders;
  for (const auto& member : members_) {
    if (member->state == MemberState::kStopping) {
      orders.push_back(Order(*member, StopWorkers{stop_.signal, grace, stop_.why}));
    }
  }
  return orders;
}

World::Orders World::PassToWorkers(int signal) const {
  Orders orders;
  for (const auto& member : members_) {
    orders.push_back(Order(*member, PassSignal{signal}));
  }
  return orders;
}

std::optional<ToAgent> World::OpenOrder(const Member& member) const {
  switch (member.state) {
    case MemberState::kPreparing:
      return Order(member, PrepareGeneration{member.assignment});
    case MemberState::kCommitted:
      return Order(member, CommitGeneration{store_});
    case MemberState::kStopping:
      return Order(member, StopWorkers{stop_.signal, stop_.grace, stop_.why});
    case MemberState::kPrepared:
    case MemberState::kStarted:
    case MemberState::kStopped:
      return std::nullopt;
  }
  return std::nullopt;
}

void World::End() {
  changes_ += phase_ == Phase::kNone ? 0 : 1;
  phase_ = Phase::kNone;
  members_.clear();
  awaiting_ = 0;
  deadline_ = MonoTime::max();
}

void World::Await(MonoTime deadline) {
  awaiting_ = static_cast<int>(members_.size());
  deadline_ = deadline;
}

void World::PutOffDeadline(Duration delay) {
  deadline_ = deadline_ == MonoTime::max() ? deadline_ : deadline_ + delay;
}

ToAgent World::Order(const Member& member, CoordinatorMessage message) const {
  return ToAgent{member.incarnation, generation_, std::move(message)};
}

// --- Reports

/// The end if there is no such member.
World::Members::const_iterator World::Place(Incarnation incarnation) const {
  const auto it =
      std::lower_bound(members_.begin(), members_.end(), incarnation,
                       [](const auto& member, Incarnation i) { return member->incarnation < i; });
  return it != members_.end() && (*it)->incarnation == incarnation ? it : members_.end();
}

const World::Member* World::Find(Incarnation incarnation) const {
  const auto it = Place(incarnation);
  return it != members_.end() ? it->get() : nullptr;
}

World::Member* World::FindSender(const FromAgent& envelope) {
  const auto it = Place(envelope.incarnation);
  return it != members_.end() && envelope.generation == generation_ ? it->get() : nullptr;
}

World::Answered World::Answer(Member& member, MemberState state) {
  member.state = state;
  return --awaiting_ == 0 ? Answered::kAll : Answered::kOne;
}

World::Answered World::Prepared(Member& member, const AgentPrepared& prepared, MonoTime now) {
  if (member.state != MemberState::kPreparing) {
    return Answered::kNothing;
  }
  if (member.assignment.group_rank == 0) {
    if (!prepared.store || prepared.store->address.empty() || prepared.store->port <= 0) {
      return Answered::kNoStore;
    }
    store_ = *prepared.store;
  }
  const Answered answered = Answer(member, MemberState::kPrepared);
  if (answered == Answered::kAll) {
    deadline_ = now + spec_.join_timeout;  // Of the commit, which may have to wait for the place.
  }
  return answered;
}

World::Answered World::Started(Member& member) {
  if (member.state != MemberState::kCommitted) {
    return Answered::kNothing;
  }
  const Answered answered = Answer(member, MemberState::kStarted);
  deadline_ = answered == Answered::kAll ? MonoTime::max() : deadline_;
  return answered;
}

World::Answered World::Stopped(Member& member) {
  // While the world runs, all workers of the node have exited, which is already known.
  return member.state == MemberState::kStopping ? Answer(member, MemberState::kStopped)
                                                : Answered::kNothing;
}

World::Ended World::WorkerEnded(Member& member, const WorkerExit& exit) {
  const bool may_have_workers = phase_ == Phase::kRunning || phase_ == Phase::kStopping;
  if (!may_have_workers || exit.local_rank < 0 ||
      exit.local_rank >= member.assignment.local_world_size || member.exited[exit.local_rank]) {
    return Ended::kNothing;
  }
  member.exited[exit.local_rank] = true;
  NoteEnd(member, exit);
  if (!exit.Succeeded()) {
    return Ended::kFailed;
  }
  if (exit.after_stop) {
    return Ended::kWell;
  }
  ++member.succeeded_count;
  ++succeeded_workers_;
  return phase_ == Phase::kRunning && HaveAllSucceeded() ? Ended::kAllWell : Ended::kWell;
}

/// For who has to know whether the workers have saved.
void World::NoteEnd(const Member& member, const WorkerExit& exit) {
  if (exit.Succeeded()) {
    ++ends_.well;
    return;
  }
  const bool was_killed = exit.killed_by_us && exit.signal == SIGKILL;
  ++(was_killed ? ends_.killed : ends_.failed);
  if (ends_.notes.size() < kMaxEndNotes) {
    ends_.notes.push_back(
        (was_killed ? "rank " + std::to_string(exit.rank) + " was killed" : DescribeExit(exit)) +
        " on " + member.name);
  }
}

void World::NoteProgress(const Progress& progress) {
  progress_ = progress;
  has_progress_ = true;
}

World::Member World::Remove(Incarnation incarnation) {
  const auto it = Place(incarnation);
  FSDPRUN_CHECK(it != members_.end(), "it is a member");
  Member member = std::move(**it);
  members_.erase(it);
  awaiting_ -= Owes(member) ? 1 : 0;
  gone_succeeded_ += member.succeeded_count;
  ++changes_;
  return member;
}

World::MemberState World::OwingState() const {
  switch (phase_) {
    case Phase::kNone:
    case Phase::kPreparing:
      return MemberState::kPreparing;
    case Phase::kRunning:
      return MemberState::kCommitted;
    case Phase::kStopping:
      return MemberState::kStopping;
  }
  return MemberState::kStopping;
}

std::vector<Incarnation> World::Owing() const {
  std::vector<Incarnation> owing;
  for (const auto& member : members_) {
    if (Owes(*member)) {
      owing.push_back(member->incarnation);
    }
  }
  return owing;
}

World::Overdue World::PassDeadline() {
  deadline_ = MonoTime::max();
  Overdue overdue{Owing(), "did not report its workers stopped in time"};
  if (phase_ == Phase::kPreparing) {
    overdue.what = "did not set up logs and store within " + Seconds(spec_.prepare_timeout);
  } else if (phase_ == Phase::kRunning) {
    overdue.what = "did not start its workers within " + Seconds(spec_.start_timeout);
  }
  return overdue;
}

bool World::HasLostGeneration(Incarnation incarnation, Generation held) const {
  const Member* member = Find(incarnation);
  if (member == nullptr || held == generation_) {
    return false;
  }
  if (held > generation_) {
    return true;  // See Note [A record that is behind].
  }
  switch (member->state) {
    case MemberState::kPrepared:
    case MemberState::kCommitted:
    case MemberState::kStarted:
      return true;
    case MemberState::kPreparing:
    case MemberState::kStopping:
    case MemberState::kStopped:
      return false;
  }
  return false;
}

// --- Of the present or the last world

job::StopStatus World::StopProgress() const {
  job::StopStatus status{.generation = generation_,
                         .is_after_failure = stop_.kind == job::StopKind::kFailure,
                         .why = stop_.why,
                         .grace = stop_.grace,
                         .kill_at = kill_at_,
                         .left = {}};
  for (const auto& member : members_) {
    if (member->state == MemberState::kStopping) {
      const auto exited = std::count(member->exited.begin(), member->exited.end(), true);
      status.left.push_back(
          {member->name, member->assignment.local_world_size - static_cast<int>(exited)});
    }
  }
  return status;
}

Duration World::RanFor(MonoTime now) const {
  return WasCommitted() ? now - committed_at_ : Duration{};
}

bool World::HasDoneAllSteps() const {
  return ends_.AllWell() && has_progress_ && progress_.total > 0 &&
         progress_.step >= progress_.total;
}

std::string World::CheckInvariants() const {
  const size_t owing = phase_ == Phase::kNone ? 0 : Owing().size();
  if (phase_ == Phase::kNone && !members_.empty()) {
    return "there are members without a world";
  }
  if (owing != static_cast<size_t>(awaiting_)) {
    return "awaiting_ is " + std::to_string(awaiting_) + ", counted " + std::to_string(owing);
  }
  if (owing > 0 && deadline_ == MonoTime::max()) {
    return "an order is open without a deadline";
  }
  if (succeeded_workers_ > world_size_) {
    return "more workers succeeded than the world has";
  }
  const int count = static_cast<int>(members_.size());
  if (phase_ == Phase::kPreparing && (count < spec_.min_nodes || count > spec_.max_nodes)) {
    return "a world of " + std::to_string(count) + " nodes is being formed";
  }
  return CheckRanks();
}

/// While a world has all its members, their ranks tile 0..N-1.
std::string World::CheckRanks() const {
  if (phase_ != Phase::kPreparing) {
    return "";
  }
  const int count = static_cast<int>(members_.size());
  std::vector<const RankAssignment*> by_group_rank(count, nullptr);
  for (const auto& member : members_) {
    const RankAssignment& a = member->assignment;
    if (a.generation != generation_ || a.group_rank < 0 || a.group_rank >= count ||
        by_group_rank[a.group_rank] != nullptr || a.world_size != world_size_ ||
        a.local_world_size != static_cast<int>(member->exited.size())) {
      return "the assignment of node " + member->name + " does not fit the world";
    }
    by_group_rank[a.group_rank] = &a;
  }
  int rank = 0;
  for (const RankAssignment* a : by_group_rank) {
    if (a->rank_offset != rank) {
      return "the ranks have a gap or an overlap at " + std::to_string(rank);
    }
    rank += a->local_world_size;
  }
  return rank == world_size_ ? "" : "the ranks do not add up to the world size";
}

}  // namespace fsdprun
