#pragma once

#include <string>
#include <vector>

#include "fsdpctl/top/frame.h"
#include "fsdpctl/top/rank_rows.h"
#include "fsdpctl/top/snapshot.h"

namespace fsdprun::top {

/// What is above the table: at most `lines_max` lines, the most important ones; at least one: the
/// job and its phase. `ranks`: RowsOf() its status. Pure.
std::vector<Line> HeaderLines(const Snapshot& snapshot, const std::vector<RankRow>& ranks,
                              int lines_max, int columns);

}  // namespace fsdprun::top
