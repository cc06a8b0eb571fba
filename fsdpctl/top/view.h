#pragma once

#include <string>

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
  kSearch,
  /// Everything is drawn anew.
  kRedraw,
  kHelp,
  kQuit,
  /// Any other: it only leaves the help.
  kOther
};

/// Letters that are no letters.
inline constexpr int kEnter = '\n';
inline constexpr int kEscape = 27;
inline constexpr int kBackspace = 127;

/// What somebody has pressed.
struct Press {
  /// kNone: nothing.
  Key key = Key::kNone;
  /// Of ASCII; 0: a key that is none.
  int letter = 0;
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
  /// Its last row stays in sight.
  bool is_at_end = false;
  /// Of the help.
  int help_row = 0;
  /// Where the table begins, however little there is to say above it: rows do not jump while
  /// somebody reads them.
  int header_lines = 0;

  /// A goal is being typed.
  bool is_typing = false;
  std::string typed;
  /// To be found: a rank, or a part of a node's name; empty: nothing.
  std::string goal;
  /// The rank that was found; of a node its first one. -1: none.
  int found = -1;
  /// What cannot be done, as a clause; empty: nothing.
  std::string note;

  bool operator==(const View&) const = default;
};

/// What is to be seen after `key`; `page`: how many rows are seen at once. The first row may be
/// beyond the end: MakeFrame() says what is really seen. kQuit changes nothing but the help. Pure.
View After(View view, Key key, int page);
/// The same where letters may be a goal that is being typed. Pure.
View After(View view, const Press& press, int page);
/// Whether it ends the program. Pure.
bool IsQuit(const View& view, const Press& press);

/// What a letter means; kOther: nothing. Pure.
Key KeyOf(int letter);

}  // namespace fsdprun::top
