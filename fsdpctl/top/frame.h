#pragma once

// What is on the screen. Values only.

#include <string>
#include <vector>

#include "fsdpctl/top/view.h"

namespace fsdprun::top {

enum class Style {
  kPlain,
  /// The first line and the titles of columns.
  kTitle,
  /// The title of the column that is sorted by.
  kSorted,
  kFaint,
  /// What was looked for.
  kFound,
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
  /// Of the table: how many rows are shown at most, 0 if there is none, and how many there are.
  int page = 0;
  int rows = 0;
  /// What is really seen: there is no row beyond the end, and a goal has been found, or not.
  View view;
};

}  // namespace fsdprun::top
