#include "launcher/control/node_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "launcher/coordinator/rank_assignment.h"
#include "launcher/coordinator/world.h"

namespace fsdprun {
namespace {

using NodePointers = std::vector<const job::Node*>;

constexpr size_t kListedMax = 16;

/// Members first, by rank.
bool IsListedBefore(const job::Node* a, const job::Node* b) {
  if (a->IsMember() != b->IsMember()) {
    return a->IsMember();
  }
  return a->IsMember() ? a->group_rank < b->group_rank : NaturalLess(a->info.name, b->info.name);
}

std::string List(NodePointers nodes) {
  std::sort(nodes.begin(), nodes.end(), IsListedBefore);
  const size_t left_out = nodes.size() > kListedMax ? nodes.size() - kListedMax : 0;
  nodes.resize(nodes.size() - left_out);
  const std::string names = absl::StrJoin(nodes, ", ", [](std::string* out, const job::Node* node) {
    absl::StrAppend(out, DescribeNode(*node));
  });
  return absl::StrCat(names, left_out > 0 ? absl::StrCat(" and ", left_out, " others") : "");
}

bool Means(absl::string_view text, const job::Node& node) {
  int rank = 0;
  if (!text.empty() && text.front() == '@') {
    return absl::SimpleAtoi(text.substr(1), &rank) && node.IsMember() && node.group_rank == rank;
  }
  return text == node.info.name || text == node.info.address;
}

bool MeansAny(const std::vector<std::string>& texts, const job::Node& node) {
  return std::any_of(texts.begin(), texts.end(),
                     [&node](const std::string& text) { return Means(text, node); });
}

absl::Status NoNode(const std::string& text, NodePointers all) {
  return absl::NotFoundError(
      absl::StrCat("no node of the job is called '", text, "'; it has ", List(std::move(all))));
}

bool HasWorker(const JobMachine& machine, const job::Node& node, int rank) {
  const World::Member* member = machine.world().Find(node.info.incarnation);
  return member != nullptr && rank >= member->assignment.rank_offset &&
         rank < member->assignment.rank_offset + member->assignment.local_world_size;
}

absl::Status CheckChoice(const JobMachine& machine, const std::vector<std::string>& names,
                         const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    if (rank < 0 || rank >= machine.world().world_size()) {
      return absl::NotFoundError(absl::StrCat("no worker has rank ", rank, ": the world has ",
                                              machine.world().world_size()));
    }
  }
  NodePointers all;
  for (const job::Node& node : machine.nodes()) {
    all.push_back(&node);
  }
  for (const std::string& name : names) {
    if (std::none_of(all.begin(), all.end(),
                     [&name](const job::Node* node) { return Means(name, *node); })) {
      return NoNode(name, std::move(all));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string DescribeNode(const job::Node& node) {
  return absl::StrCat(node.info.name, " (", node.info.address,
                      node.IsMember() ? absl::StrCat(", @", node.group_rank) : ", waits", ")");
}

absl::StatusOr<const job::Node*> ChooseNode(const NodeTable& nodes, const std::string& text) {
  NodePointers all;
  NodePointers meant;
  for (const job::Node& node : nodes) {
    all.push_back(&node);
    if (Means(text, node)) {
      meant.push_back(&node);
    }
  }
  if (all.empty()) {
    return absl::NotFoundError("the job has no nodes yet");
  }
  if (meant.empty()) {
    return NoNode(text, std::move(all));
  }
  if (meant.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", text, "' is the name of several nodes: ", List(std::move(meant)),
                     "; name one by its address or by @N, its group rank"));
  }
  return meant.front();
}

absl::StatusOr<std::vector<const job::Node*>> ChooseMembers(const JobMachine& machine,
                                                            const std::vector<std::string>& names,
                                                            const std::vector<int>& ranks) {
  RETURN_IF_ERROR(CheckChoice(machine, names, ranks));
  NodePointers chosen;
  for (const job::Node& node : machine.nodes()) {
    const bool has_worker =
        ranks.empty() || std::any_of(ranks.begin(), ranks.end(), [&machine, &node](int rank) {
          return HasWorker(machine, node, rank);
        });
    if (node.IsMember() && has_worker && (names.empty() || MeansAny(names, node))) {
      chosen.push_back(&node);
    }
  }
  return chosen;
}

}  // namespace fsdprun
