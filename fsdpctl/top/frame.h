#pragma once

// What is on the screen. Values only.

#include <string>
#include <vector>

namespace fsdprun::top {

enum class Style {
  kPlain,
  /// The first line and the titles of columns.
  kTitle,
  /// The title of the column that is sorted by.
  kSorted,
  kFaint,
  /// May need somebody.
  kWarning,
  /// Does.
  kBad
};

struct Span {
  Style style = Style::kPlain;
  /// A ScreenText().
  std::string text;

  bool operator==(const Span&) const = default;
};
using Line = std::vector<Span>;

struct Size {
  /// 0: as many as are needed.
  int rows = 24;
  int columns = 80;
};

struct Frame {
  /// From the top, none wider than the screen.
  std::vector<Line> lines;
  /// Of the table: the first row that is shown, how many are at most, and how many there are.
  int first_row = 0;
  int page = 0;
  int rows = 0;
};

}  // namespace fsdprun::top
