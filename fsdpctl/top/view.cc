#include "fsdpctl/top/view.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <limits>
#include <utility>

namespace fsdprun::top {
namespace {

/// Far from overflow.
constexpr int kEndRow = std::numeric_limits<int>::max() / 2;
/// Of a goal, bytes.
constexpr size_t kTypedMax = 64;

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

bool IsScrolling(Key key) { return key >= Key::kUp && key <= Key::kEnd; }

bool GoesUp(Key key) { return key == Key::kUp || key == Key::kPageUp || key == Key::kHome; }

/// From the first row on.
View Anew(View view) {
  view.first_row = 0;
  view.is_at_end = false;
  return view;
}

/// After a key that does not scroll.
View Chosen(View view, Key key) {
  switch (key) {
    case Key::kSort:
      view.sort = view.sort == SortKey::kMemory
                      ? SortKey::kRank
                      : static_cast<SortKey>(static_cast<int>(view.sort) + 1);
      return Anew(std::move(view));
    case Key::kReverse:
      view.is_reversed = !view.is_reversed;
      return Anew(std::move(view));
    case Key::kProblems:
      view.only_problems = !view.only_problems;
      return Anew(std::move(view));
    case Key::kNodes:
      view.shows_nodes = !view.shows_nodes;
      view.goal = view.found < 0 ? "" : std::to_string(view.found);  // Of the node the ranks.
      return Anew(std::move(view));
    case Key::kEvents:
      view.shows_events = !view.shows_events;
      return view;
    case Key::kSearch:
      view.is_typing = true;
      return view;
    case Key::kHelp:
      view.shows_help = true;
      view.help_row = 0;
      return view;
    default:
      return view;
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
  view.note.clear();
  if (view.shows_help) {
    view.help_row = Scrolled(view.help_row, key, page);
    view.shows_help = IsScrolling(key);
    return view;
  }
  if (!IsScrolling(key)) {
    view.header_lines = 0;
    view.found = key == Key::kNodes || key == Key::kRedraw ? view.found : -1;
  }
  view.is_at_end = key == Key::kEnd || (view.is_at_end && !GoesUp(key));
  view.first_row = Scrolled(view.first_row, key, page);
  return Chosen(std::move(view), key);
}

View After(View view, const Press& press, int page) {
  const bool begins = !view.shows_help && std::isdigit(press.letter) != 0;
  if (!view.is_typing && !begins) {
    return After(std::move(view), press.key, page);
  }
  view.note.clear();
  view.is_typing = press.letter != kEnter && press.letter != kEscape;
  if (press.letter == kEnter) {
    view.goal = view.typed;
  } else if (press.letter == kBackspace && !view.typed.empty()) {
    view.typed.pop_back();
  } else if (std::isprint(press.letter) != 0 && view.typed.size() < kTypedMax) {
    view.typed += static_cast<char>(press.letter);
  }
  if (!view.is_typing) {
    view.typed.clear();
  }
  return view;
}

bool IsQuit(const View& view, const Press& press) {
  return press.key == Key::kQuit && !view.shows_help && !view.is_typing;
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
    case '/':
      return Key::kSearch;
    case 'L' - '@':  // Ctrl-L
      return Key::kRedraw;
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
