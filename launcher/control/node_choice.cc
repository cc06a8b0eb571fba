#include "launcher/control/node_choice.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launcher/coordinator/world.h"

namespace fsdprun {
namespace {

/// How many nodes an error names.
constexpr size_t kNamedMax = 8;

std::string ListNodes(const JobMachine& machine) {
  std::string list;
  size_t count = 0;
  for (const job::Node& node : machine.nodes()) {
    if (count++ < kNamedMax) {
      absl::StrAppend(&list, list.empty() ? "" : ", ", node.info.name, " (", node.info.address,
                      ")");
    }
  }
  if (count > kNamedMax) {
    absl::StrAppend(&list, " and ", count - kNamedMax, " more");
  }
  return list.empty() ? "it has no nodes now" : absl::StrCat("it has ", list);
}

bool IsMeant(const job::Node& node, const std::string& name) {
  int group_rank = -1;
  if (name.size() > 1 && name[0] == '@' && absl::SimpleAtoi(name.substr(1), &group_rank)) {
    return node.IsMember() && node.group_rank == group_rank;
  }
  return node.info.name == name || node.info.address == name;
}

bool HasWorker(const JobMachine& machine, const job::Node& node, int rank) {
  const World::Member* member = machine.world().Find(node.info.incarnation);
  return member != nullptr && rank >= member->assignment.rank_offset &&
         rank < member->assignment.rank_offset + member->assignment.local_world_size;
}

}  // namespace

absl::StatusOr<std::vector<const job::Node*>> FindNodes(const JobMachine& machine,
                                                        const std::string& name) {
  std::vector<const job::Node*> found;
  for (const job::Node& node : machine.nodes()) {
    if (IsMeant(node, name)) {
      found.push_back(&node);
    }
  }
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the job has no node '", name, "'; ", ListNodes(machine)));
  }
  return found;
}

absl::StatusOr<std::vector<const job::Node*>> ChooseMembers(const JobMachine& machine,
                                                            const std::vector<std::string>& names,
                                                            const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    if (rank < 0 || rank >= machine.world().world_size()) {
      return absl::NotFoundError(absl::StrCat("no worker has rank ", rank, ": the world has ",
                                              machine.world().world_size()));
    }
  }
  for (const std::string& name : names) {
    if (const auto found = FindNodes(machine, name); !found.ok()) {
      return found.status();
    }
  }
  std::vector<const job::Node*> chosen;
  for (const job::Node& node : machine.nodes()) {
    const bool is_named =
        names.empty() || std::any_of(names.begin(), names.end(), [&node](const std::string& name) {
          return IsMeant(node, name);
        });
    const bool has_worker =
        ranks.empty() || std::any_of(ranks.begin(), ranks.end(), [&machine, &node](int rank) {
          return HasWorker(machine, node, rank);
        });
    if (node.IsMember() && is_named && has_worker) {
      chosen.push_back(&node);
    }
  }
  return chosen;
}

}  // namespace fsdprun
