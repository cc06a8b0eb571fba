#include "fsdpctl/top/view.h"

#include <algorithm>
#include <limits>

namespace fsdprun::top {
namespace {

/// Far from overflow.
constexpr int kEndRow = std::numeric_limits<int>::max() / 2;

int Scrolled(int first, Key key, int page) {
  const int leap = std::max(1, page - 1);
  switch (key) {
    case Key::kUp:
      return std::max(0, first - 1);
    case Key::kDown:
      return first + 1;
    case Key::kPageUp:
      return std::max(0, first - leap);
    case Key::kPageDown:
      return first + leap;
    case Key::kHome:
      return 0;
    case Key::kEnd:
      return kEndRow;
    default:
      return first;
  }
}

}  // namespace

const char* NameOf(SortKey key) {
  switch (key) {
    case SortKey::kRank:
      return "rank";
    case SortKey::kStep:
      return "step";
    case SortKey::kStepTime:
      return "step time";
    case SortKey::kCpu:
      return "cpu";
    case SortKey::kMemory:
      return "memory";
  }
  return "";
}

View After(View view, Key key, int page) {
  if (key == Key::kNone) {
    return view;
  }
  if (view.shows_help) {
    view.shows_help = false;
    return view;
  }
  view.first_row = Scrolled(view.first_row, key, page);
  switch (key) {
    case Key::kSort:
      view.sort = view.sort == SortKey::kMemory
                      ? SortKey::kRank
                      : static_cast<SortKey>(static_cast<int>(view.sort) + 1);
      view.first_row = 0;
      break;
    case Key::kReverse:
      view.is_reversed = !view.is_reversed;
      view.first_row = 0;
      break;
    case Key::kProblems:
      view.only_problems = !view.only_problems;
      view.first_row = 0;
      break;
    case Key::kNodes:
      view.shows_nodes = !view.shows_nodes;
      view.first_row = 0;
      break;
    case Key::kEvents:
      view.shows_events = !view.shows_events;
      break;
    case Key::kHelp:
      view.shows_help = true;
      break;
    default:
      break;
  }
  return view;
}

Key KeyOf(int letter) {
  switch (letter) {
    case 'k':
      return Key::kUp;
    case 'j':
      return Key::kDown;
    case 'b':
      return Key::kPageUp;
    case ' ':
      return Key::kPageDown;
    case 'g':
      return Key::kHome;
    case 'G':
      return Key::kEnd;
    case 's':
      return Key::kSort;
    case 'r':
      return Key::kReverse;
    case 'p':
      return Key::kProblems;
    case 'n':
      return Key::kNodes;
    case 'e':
      return Key::kEvents;
    case '?':
    case 'h':
      return Key::kHelp;
    case 'q':
      return Key::kQuit;
    default:
      return Key::kOther;
  }
}

}  // namespace fsdprun::top
