#pragma once

namespace fsdprun::top {

enum class SortKey { kRank, kStep, kStepTime, kCpu, kMemory };
/// "step time", for people.
const char* NameOf(SortKey key);

enum class Key {
  kNone,
  kUp,
  kDown,
  kPageUp,
  kPageDown,
  kHome,
  kEnd,
  kSort,
  kReverse,
  kProblems,
  kNodes,
  kEvents,
  kHelp,
  kQuit,
  /// Any other: it only leaves the help.
  kOther
};

/// What somebody wants to see.
struct View {
  /// Of steps the lowest first, of the others but ranks the highest.
  SortKey sort = SortKey::kRank;
  bool is_reversed = false;
  bool only_problems = false;
  bool shows_nodes = false;
  bool shows_events = false;
  bool shows_help = false;
  /// Of the table.
  int first_row = 0;

  bool operator==(const View&) const = default;
};

/// What is to be seen after `key`; `page`: how many rows are seen at once. The first row may be
/// beyond the end: MakeFrame() says which it really is. kQuit changes nothing but the help. Pure.
View After(View view, Key key, int page);

/// What a letter means; kOther: nothing. Pure.
Key KeyOf(int letter);

}  // namespace fsdprun::top
