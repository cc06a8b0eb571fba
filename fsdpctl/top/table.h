#pragma once

#include <string>
#include <vector>

#include "fsdpctl/top/frame.h"

namespace fsdprun::top {

struct Column {
  std::string title;
  /// At least; of the last column, which gets what is left.
  int width = 0;
  bool is_right = false;
  /// Where not all have room, the one with the greatest number goes first. 0: none.
  int dispensable = 0;
  bool is_sorted_by = false;
};

/// The columns, by index, that have room beside each other with a blank between any two. Pure.
std::vector<size_t> ColumnsWithRoom(const std::vector<Column>& columns, int room);

/// What is in the cells of a row: ScreenText()s, one for each column.
using Cells = std::vector<std::string>;

/// Pure.
Line TitleLine(const std::vector<Column>& columns, const std::vector<size_t>& shown, int room);
/// Pure.
Line RowLine(const std::vector<Column>& columns, const std::vector<size_t>& shown,
             const Cells& cells, Style style, int room);

}  // namespace fsdprun::top
