#pragma once

// Text for a terminal, in its columns. What is printable, and how wide it is, is as the locale's
// LC_CTYPE says, which is UTF-8 or "C".

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fsdprun::top {

/// `text` without anything that steers a terminal: control characters become blanks, what is not
/// valid or not printable question marks, and what has no width is left out.
std::string ScreenText(absl::string_view text);

/// How many columns a ScreenText() takes.
int ColumnsOf(absl::string_view text);

/// A ScreenText() in exactly so many columns: filled up with blanks, or cut off, which a `~` shows.
std::string Fit(absl::string_view text, int columns, bool is_right = false);

/// A ScreenText() in lines of so many columns, broken at blanks where there are any. What needs
/// more than `lines_max` lines is cut off.
std::vector<std::string> Wrap(absl::string_view text, int columns, int lines_max);

}  // namespace fsdprun::top
