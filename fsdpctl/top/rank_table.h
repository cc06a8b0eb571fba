#pragma once

#include <vector>

#include "fsdpctl/top/rank_rows.h"
#include "fsdpctl/top/table.h"

namespace fsdprun::top {

/// Of the table with a row for each rank; as wide as `rows` need them. Pure.
std::vector<Column> RankColumns(const std::vector<RankRow>& rows, SortKey sort);
/// One for each of them. What is not known is kUnknown. Pure.
Cells RankCells(const RankRow& row);
Style StyleOf(const RankRow& row);

}  // namespace fsdprun::top
