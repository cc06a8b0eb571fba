#include "fsdpctl/top/job_table.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdpctl/top/goal.h"
#include "fsdpctl/top/node_table.h"
#include "fsdpctl/top/rank_table.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

/// A row that need not be made if nobody sees it.
struct Row {
  Cells cells;
  Style style = Style::kPlain;
};

/// Where the table begins: at what was looked for, which is known once it is seen.
View Placed(View view, int count, int page, const std::function<RowName(int)>& name_of) {
  if (!view.goal.empty()) {
    const std::optional<int> row = RowOfGoal(view.goal, count, name_of);
    if (row.has_value()) {
      view.first_row = *row;
      view.is_at_end = false;
      view.found = name_of(*row).first_rank;
    } else {
      view.note = ScreenText(absl::StrCat("there is no rank or node ", view.goal,
                                          view.only_problems ? " with a problem" : ""));
    }
    view.goal.clear();
  }
  const int last = std::max(0, count - page);
  view.first_row = view.is_at_end ? last : std::clamp(view.first_row, 0, last);
  return view;
}

/// Fills in `rows` and `view`. What has been told long ago is faint.
void AddRows(const View& view, int page, int columns, bool is_old,
             const std::function<RowName(int)>& name_of, const std::function<Row(int)>& row_of,
             JobTable* table) {
  page = page < 0 ? table->count : page;
  table->view = Placed(view, table->count, page, name_of);
  const std::vector<size_t> chosen = ColumnsWithRoom(table->columns, columns);
  const int first = table->view.first_row;
  for (int i = first; i < std::min(table->count, first + page); ++i) {
    const Row row = row_of(i);
    const bool is_found = table->view.found >= 0 && name_of(i).first_rank == table->view.found;
    const Style style = is_found ? Style::kFound : is_old ? Style::kFaint : row.style;
    table->rows.push_back(RowLine(table->columns, chosen, row.cells, style, columns));
  }
}

}  // namespace

JobTable TableOf(const Snapshot& snapshot, const std::vector<RankRow>& ranks, const View& view,
                 int page, int columns) {
  JobTable table;
  const bool is_old = !snapshot.trouble.empty();
  if (view.shows_nodes) {
    const std::vector<NodeRow> nodes = NodeRows(snapshot.status, ranks, view);
    const auto at = [&](int i) -> const NodeRow& { return nodes[static_cast<size_t>(i)]; };
    table.columns = NodeColumns(snapshot.status, view.sort);
    table.count = static_cast<int>(nodes.size());
    table.why_empty = snapshot.status.nodes().empty() ? "no nodes" : "no node has a problem";
    AddRows(
        view, page, columns, is_old,
        [&](int i) {
          const v1::NodeStatus& node = *at(i).node;
          return RowName{node.first_rank(), node.workers(), node.name()};
        },
        [&](int i) {
          return Row{at(i).cells, at(i).style};
        },
        &table);
    return table;
  }
  const std::vector<RankRow> shown = Arranged(ranks, view);
  const auto at = [&](int i) -> const RankRow& { return shown[static_cast<size_t>(i)]; };
  table.columns = RankColumns(ranks, view.sort);
  table.count = static_cast<int>(shown.size());
  table.why_empty = ranks.empty() ? "no workers" : "no worker has a problem";
  AddRows(
      view, page, columns, is_old,
      [&](int i) {
        return RowName{at(i).rank, 1, at(i).node};
      },
      [&](int i) {
        return Row{RankCells(at(i)), StyleOf(at(i))};
      },
      &table);
  return table;
}

}  // namespace fsdprun::top
