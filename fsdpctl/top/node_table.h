#pragma once

#include <vector>

#include "fsdpctl/top/rank_rows.h"
#include "fsdpctl/top/table.h"

namespace fsdprun::top {

/// A node, with what its workers add up to.
struct NodeRow {
  Cells cells;
  Style style = Style::kPlain;
};

std::vector<Column> NodeColumns(const v1::JobStatus& status);
/// In the order of ranks, nodes without a part in the world last; with `view.only_problems`, those
/// with something the matter. `ranks`: RowsOf(status). Pure.
std::vector<NodeRow> NodeRows(const v1::JobStatus& status, const std::vector<RankRow>& ranks,
                              const View& view);

}  // namespace fsdprun::top
