#pragma once

#include <vector>

#include "fsdpctl/top/frame.h"
#include "fsdpctl/top/rank_rows.h"
#include "fsdpctl/top/snapshot.h"
#include "fsdpctl/top/table.h"

namespace fsdprun::top {

/// The ranks or the nodes, as somebody wants to see them.
struct JobTable {
  std::vector<Column> columns;
  /// Those that are seen.
  std::vector<Line> rows;
  /// How many there are.
  int count = 0;
  const char* why_empty = "";
  /// With the first row that is seen, and the goal found.
  View view;
};

/// `page`: rows at most; -1: all. `ranks`: RowsOf() the snapshot. Pure.
JobTable TableOf(const Snapshot& snapshot, const std::vector<RankRow>& ranks, const View& view,
                 int page, int columns);

}  // namespace fsdprun::top
