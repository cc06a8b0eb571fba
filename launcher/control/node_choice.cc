#include "launcher/control/node_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "launcher/coordinator/rank_assignment.h"

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
    return absl::NotFoundError(
        absl::StrCat("no node of the job is called '", text, "'; it has ", List(std::move(all))));
  }
  if (meant.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", text, "' is the name of several nodes: ", List(std::move(meant)),
                     "; name one by its address or by @N, its group rank"));
  }
  return meant.front();
}

}  // namespace fsdprun
