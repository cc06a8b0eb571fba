#pragma once

#include <vector>

#include "fsdpctl/top/rank_rows.h"
#include "fsdpctl/top/table.h"

namespace fsdprun::top {

/// A node, with what its workers add up to.
struct NodeRow {
  const v1::NodeStatus* node = nullptr;
  Cells cells;
  Style style = Style::kPlain;
};

std::vector<Column> NodeColumns(const v1::JobStatus& status, SortKey sort);
/// Sorted as `view` says, by rank or what the workers add up to, nodes without any last; with
/// `view.only_problems`, those with something the matter. They point into `status`. `ranks`:
/// RowsOf(status). Pure.
std::vector<NodeRow> NodeRows(const v1::JobStatus& status, const std::vector<RankRow>& ranks,
                              const View& view);

}  // namespace fsdprun::top
