#include "fsdpctl/top/help.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

constexpr const char* kHelp[] = {
    "Up Down k j       scroll by a row",
    "PgUp PgDn b Space scroll by a screen",
    "Home End g G      to the first, the last row",
    "/ 0-9             to a rank by its number, or a node by its name: Enter",
    "s                 sort by rank, step, step time, cpu, memory",
    "r                 reverse the order",
    "p                 only workers with problems, or all",
    "n                 nodes, or workers: of the node that was found",
    "e                 the latest events, or not",
    "? h               this help; a key that does not scroll leaves it",
    "q Ctrl-C          quit; Ctrl-Z suspends, Ctrl-L draws all anew",
    "",
    "S      R computes, S asleep, D in the kernel, T stopped, t traced, Z dead",
    "TIME   of the latest step; COLL, DATA: part of it in which the worker",
    "       waited in collectives, for data",
    "CPU    100% is one processor; RSS, PSS, DEVICE: memory",
    "LOSS   and TOK/S: as the worker says; nan: it is infinite or no number",
    "HEARD  how long ago its node has told of it",
    "-      nobody has said so: a program in Python says nothing of itself",
    "       unless it writes its page (docs/VITALS.md)",
};

}  // namespace

Frame HelpFrame(const View& view, const Size& size) {
  const int count = static_cast<int>(std::size(kHelp));
  const int page = size.rows == 0 ? count : std::max(0, size.rows - 1);
  Frame frame;
  frame.view = view;
  frame.view.help_row = std::clamp(view.help_row, 0, std::max(0, count - page));
  const char* more = page < count ? ", Up and Down scroll" : "";
  frame.lines.push_back(
      {{Style::kTitle, Fit(absl::StrCat("fsdpctl top: keys", more), size.columns)}});
  for (int i = frame.view.help_row; i < std::min(count, frame.view.help_row + page); ++i) {
    frame.lines.push_back({{Style::kPlain, Fit(kHelp[i], size.columns)}});
  }
  return frame;
}

}  // namespace fsdprun::top
