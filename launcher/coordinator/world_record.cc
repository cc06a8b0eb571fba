// A world as a coordinator leaves it to the next, see Note [Taking a job over].

#include <algorithm>

#include "base/check.h"
#include "launcher/coordinator/world.h"

namespace fsdprun {

job::WorldRecord World::ToRecord() const {
  job::WorldRecord record;
  record.phase = static_cast<job::WorldRecord::Phase>(phase_);
  record.world_size = world_size_;
  record.store = store_;
  record.members.reserve(members_.size());
  for (const auto& member : members_) {
    record.members.push_back({member->incarnation, member->assignment});
  }
  record.gone_succeeded = gone_succeeded_;
  record.was_committed = WasCommitted();
  record.stop_kind = stop_.kind;
  record.stop_signal = stop_.signal;
  record.stop_grace = stop_.grace;
  record.stop_why = stop_.why;
  return record;
}

void World::Restore(const job::WorldRecord& record, Generation generation,
                    const std::vector<job::NodeRecord>& nodes, MonoTime now) {
  FSDPRUN_CHECK(generation_ == Generation{}, "nothing has happened yet");
  phase_ = static_cast<Phase>(record.phase);
  generation_ = generation;
  world_size_ = record.world_size;
  succeeded_workers_ = gone_succeeded_ = record.gone_succeeded;
  ends_ = {.workers = world_size_, .well = gone_succeeded_};
  store_ = record.store;
  stop_ = {record.stop_kind, record.stop_signal, record.stop_grace, record.stop_why};
  kill_at_ = phase_ == Phase::kStopping ? now + stop_.grace : MonoTime::max();
  committed_at_ = record.was_committed && phase_ != Phase::kNone ? now : MonoTime::max();
  auto node = nodes.begin();
  for (const job::WorldRecord::Member& member : record.members) {
    node = std::find_if(node, nodes.end(), [&](const job::NodeRecord& other) {
      return other.info.incarnation == member.incarnation;
    });
    FSDPRUN_CHECK(node != nodes.end(), "every member is one of the nodes");
    members_.push_back(std::make_unique<Member>(
        Member{.incarnation = member.incarnation,
               .name = node->info.name,
               .state = OwingState(),
               .assignment = member.assignment,
               .succeeded_count = 0,
               .exited = std::vector<bool>(member.assignment.local_world_size, false)}));
  }
  if (phase_ != Phase::kNone) {
    Await(DeadlineAfterRestore(now));
  }
}

/// As after the order, once all have come again.
MonoTime World::DeadlineAfterRestore(MonoTime now) const {
  const MonoTime from = now + spec_.rejoin_grace;
  switch (phase_) {
    case Phase::kNone:
      break;
    case Phase::kPreparing:
      return from + spec_.prepare_timeout;
    case Phase::kRunning:
      return from + spec_.start_timeout;
    case Phase::kStopping:
      return from + stop_.grace + spec_.stop_margin;
  }
  return MonoTime::max();
}

}  // namespace fsdprun
