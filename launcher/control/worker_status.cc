#include "launcher/control/worker_status.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace fsdprun {
namespace {

void AddWorkers(const World::Member& member, const std::map<int, VitalsTable::Entry>& entries,
                MonoTime now, v1::JobStatus* status) {
  const RankAssignment& place = member.assignment;
  for (int local = 0; local < place.local_world_size; ++local) {
    const auto index = static_cast<size_t>(local);
    v1::WorkerStatus* const worker = status->add_workers();
    worker->set_rank(place.rank_offset + local);
    worker->set_has_ended(index < member.exited.size() && member.exited[index]);
    const auto entry = entries.find(worker->rank());
    if (entry == entries.end()) {
      continue;
    }
    *worker->mutable_vitals() = entry->second.vitals;
    worker->set_vitals_age_ns((now - entry->second.at).count());
    if (entry->second.cpus.has_value()) {
      worker->set_cpus(*entry->second.cpus);
    }
  }
}

}  // namespace

void DescribeWorkers(const World& world, const VitalsTable& vitals, MonoTime now,
                     v1::JobStatus* status) {
  static const std::map<int, VitalsTable::Entry> kNone;
  const bool is_of_world = vitals.generation() == world.generation();
  std::vector<const World::Member*> members;
  for (const auto& member : world.members()) {
    members.push_back(member.get());
  }
  std::sort(members.begin(), members.end(), [](const auto* a, const auto* b) {
    return a->assignment.rank_offset < b->assignment.rank_offset;
  });
  for (const World::Member* member : members) {
    AddWorkers(*member, is_of_world ? vitals.entries() : kNone, now, status);
  }
}

}  // namespace fsdprun
