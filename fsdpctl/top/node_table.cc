#include "fsdpctl/top/node_table.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdpctl/jobs/status_text.h"
#include "fsdpctl/top/amounts.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

constexpr int kNameColumns = 20;

/// Of the workers of a node. 0, and -1 of a step: nobody says so.
struct Sum {
  double cpus = 0;
  bool has_cpus = false;
  /// Of shared pages each its part, where that is known.
  int64_t memory = 0;
  int64_t device = 0;
  int64_t lowest_step = -1;
  int64_t longest_step_ns = 0;
  int troubles = 0;
  Trouble worst = Trouble::kNone;
};

void Add(const RankRow& row, Sum* sum) {
  sum->troubles += row.trouble == Trouble::kNone ? 0 : 1;
  sum->worst = std::max(sum->worst, row.trouble);
  if (row.vitals() == nullptr || row.HasEnded()) {
    return;
  }
  sum->has_cpus = sum->has_cpus || row.worker->has_cpus();
  sum->cpus += row.worker->cpus();
  sum->memory = AddUp(sum->memory, row.vitals()->pss_bytes() > 0 ? row.vitals()->pss_bytes()
                                                                 : row.vitals()->rss_bytes());
  if (row.own == nullptr) {
    return;
  }
  sum->device = AddUp(sum->device, row.own->device_bytes());
  sum->longest_step_ns = std::max(sum->longest_step_ns, row.own->step_ns());
  if (row.own->step() >= 0) {
    sum->lowest_step =
        sum->lowest_step < 0 ? row.own->step() : std::min(sum->lowest_step, row.own->step());
  }
}

/// Of a node, by the first rank that it has.
Sum SumOf(const v1::NodeStatus& node, const std::vector<RankRow>& ranks) {
  Sum sum;
  if (node.first_rank() < 0) {
    return sum;
  }
  const auto first = std::lower_bound(ranks.begin(), ranks.end(), node.first_rank(),
                                      [](const RankRow& row, int rank) { return row.rank < rank; });
  for (auto row = first; row != ranks.end() && row->rank < node.first_rank() + node.workers();
       ++row) {
    Add(*row, &sum);
  }
  return sum;
}

bool IsAmiss(const v1::NodeStatus& node) {
  return !node.connected() || node.suspect() || node.left_out();
}

Style NodeStyle(const v1::NodeStatus& node, const Sum& sum) {
  const bool is_bad = sum.worst >= Trouble::kStopped || !node.connected();
  return is_bad                                         ? Style::kBad
         : IsAmiss(node) || sum.worst != Trouble::kNone ? Style::kWarning
         : node.first_rank() < 0                        ? Style::kFaint
                                                        : Style::kPlain;
}

NodeRow RowOf(const v1::NodeStatus& node, const Sum& sum) {
  const auto bytes = [](int64_t count) { return count == 0 ? kUnknown : BytesText(count); };
  return {&node,
          {ScreenText(node.name()), ScreenText(node.address()), RanksText(node),
           sum.lowest_step < 0 ? kUnknown : absl::StrCat(sum.lowest_step),
           sum.longest_step_ns == 0 ? kUnknown : TimeText(sum.longest_step_ns),
           sum.has_cpus ? absl::StrFormat("%.0f%%", 100 * sum.cpus) : kUnknown, bytes(sum.memory),
           bytes(sum.device), sum.troubles == 0 ? kUnknown : absl::StrCat(sum.troubles),
           TimeText(node.heard_age_ns()), ScreenText(NodeStateText(node))},
          NodeStyle(node, sum)};
}

/// As of a rank.
std::optional<double> NodeSortValue(const v1::NodeStatus& node, const Sum& sum, SortKey key) {
  const auto highest = [](double value, bool is_known) {
    return is_known ? std::optional(-value) : std::nullopt;
  };
  switch (key) {
    case SortKey::kRank:
      return node.first_rank() >= 0 ? std::optional<double>(node.first_rank()) : std::nullopt;
    case SortKey::kStep:
      return sum.lowest_step >= 0 ? std::optional<double>(static_cast<double>(sum.lowest_step))
                                  : std::nullopt;
    case SortKey::kStepTime:
      return highest(static_cast<double>(sum.longest_step_ns), sum.longest_step_ns > 0);
    case SortKey::kCpu:
      return highest(sum.cpus, sum.has_cpus);
    case SortKey::kMemory:
      return highest(static_cast<double>(sum.memory), sum.memory > 0);
  }
  return std::nullopt;
}

}  // namespace

std::vector<Column> NodeColumns(const v1::JobStatus& status, SortKey sort) {
  int name = 4;
  int address = 7;
  int ranks = 5;
  for (const v1::NodeStatus& node : status.nodes()) {
    name = std::max(name, std::min(kNameColumns, ColumnsOf(ScreenText(node.name()))));
    address = std::max(address, std::min(kNameColumns, ColumnsOf(ScreenText(node.address()))));
    ranks = std::max(ranks, ColumnsOf(RanksText(node)));
  }
  return {{"NODE", name, false, 0},
          {"ADDRESS", address, false, 8},
          {"RANKS", ranks, true, 1, sort == SortKey::kRank},
          {"STEP", 7, true, 2, sort == SortKey::kStep},
          {"TIME", 6, true, 6, sort == SortKey::kStepTime},
          {"CPU", 6, true, 7, sort == SortKey::kCpu},
          {"MEMORY", 6, true, 4, sort == SortKey::kMemory},
          {"DEVICE", 6, true, 5},
          {"TROUBLE", 7, true, 3},
          {"HEARD", 6, true, 9},
          {"STATE", 10, false, 0}};
}

std::vector<NodeRow> NodeRows(const v1::JobStatus& status, const std::vector<RankRow>& ranks,
                              const View& view) {
  struct Sorted {
    std::optional<double> value;
    NodeRow row;
  };
  std::vector<Sorted> sorted;
  for (const v1::NodeStatus* node : NodesInOrder(status)) {
    const Sum sum = SumOf(*node, ranks);
    if (!view.only_problems || IsAmiss(*node) || sum.troubles > 0) {
      sorted.push_back({NodeSortValue(*node, sum, view.sort), RowOf(*node, sum)});
    }
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Sorted& a, const Sorted& b) {
    return ComesBefore(a.value, b.value, view.is_reversed);
  });
  std::vector<NodeRow> rows;
  rows.reserve(sorted.size());
  for (Sorted& one : sorted) {
    rows.push_back(std::move(one.row));
  }
  return rows;
}

}  // namespace fsdprun::top
