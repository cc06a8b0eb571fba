#include "fsdpctl/top/table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

int WidthOf(const std::vector<Column>& columns, const std::vector<size_t>& shown) {
  return std::accumulate(shown.begin(), shown.end(), static_cast<int>(shown.size()) - 1,
                         [&](int sum, size_t i) { return sum + columns[i].width; });
}

/// Each with a blank behind it but the last, which fills the line.
std::vector<int> Widths(const std::vector<Column>& columns, const std::vector<size_t>& shown,
                        int room) {
  std::vector<int> widths;
  int left = room;
  for (const size_t i : shown) {
    widths.push_back(i == shown.back() ? left : std::min(left, columns[i].width));
    left = std::max(0, left - widths.back() - 1);
  }
  return widths;
}

}  // namespace

std::vector<size_t> ColumnsWithRoom(const std::vector<Column>& columns, int room) {
  std::vector<size_t> shown(columns.size());
  std::iota(shown.begin(), shown.end(), size_t{0});
  while (WidthOf(columns, shown) > room) {
    const auto least = std::max_element(shown.begin(), shown.end(), [&](size_t a, size_t b) {
      return columns[a].dispensable < columns[b].dispensable;
    });
    if (least == shown.end() || columns[*least].dispensable == 0) {
      break;
    }
    shown.erase(least);
  }
  return shown;
}

Line TitleLine(const std::vector<Column>& columns, const std::vector<size_t>& shown, int room) {
  const std::vector<int> widths = Widths(columns, shown, room);
  Line line;
  for (size_t i = 0; i < shown.size(); ++i) {
    const Column& column = columns[shown[i]];
    line.push_back({column.is_sorted_by ? Style::kSorted : Style::kTitle,
                    Fit(column.title, widths[i], column.is_right)});
    if (i + 1 < shown.size()) {
      line.push_back({Style::kTitle, " "});
    }
  }
  return line;
}

Line RowLine(const std::vector<Column>& columns, const std::vector<size_t>& shown,
             const Cells& cells, Style style, int room) {
  const std::vector<int> widths = Widths(columns, shown, room);
  std::string text;
  for (size_t i = 0; i < shown.size(); ++i) {
    text += Fit(cells[shown[i]], widths[i], columns[shown[i]].is_right);
    text += i + 1 < shown.size() ? " " : "";
  }
  return {{style, Fit(text, room)}};
}

}  // namespace fsdprun::top
