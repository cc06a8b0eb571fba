#include "fsdpctl/screen/screen.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdpctl/screen/crash_restore.h"

#define NCURSES_NOMACROS
#include <curses.h>
#include <term.h>
// Names of capabilities.
#undef columns
#undef lines

namespace fsdprun::top {
namespace {

/// How long the bytes of one key may be apart, ms.
constexpr int kKeyBytesApart = 25;

std::string ValueOf(const Environment& environment, const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? "" : it->second;
}

absl::Status NoScreen(const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat(why, "; fsdpctl top --once prints the same as text, --json as JSON"));
}

/// One of terminfo's texts, without its pauses; "" if the terminal has none.
std::string Capability(const char* name) {
  const char* const text = ::tigetstr(name);
  if (text == nullptr || text == reinterpret_cast<const char*>(-1)) {
    return "";
  }
  std::string shown = text;
  for (size_t begin; (begin = shown.find("$<")) != std::string::npos;) {
    const size_t end = shown.find('>', begin);
    shown.erase(begin, end == std::string::npos ? end : end - begin + 1);
  }
  return shown;
}

// https://no-color.org
bool WantsColours(const Environment& environment) {
  return ValueOf(environment, "NO_COLOR").empty() && ::has_colors();
}

void BeginColours() {
  ::start_color();
  ::use_default_colors();
  ::init_pair(1, COLOR_RED, -1);
  ::init_pair(2, COLOR_YELLOW, -1);
}

attr_t AttributesOf(Style style, bool has_colours) {
  const auto pair = [&](int number) {
    return has_colours ? static_cast<attr_t>(COLOR_PAIR(number)) : attr_t{A_NORMAL};
  };
  switch (style) {
    case Style::kPlain:
      return A_NORMAL;
    case Style::kTitle:
      return A_REVERSE;
    case Style::kSorted:
      return A_REVERSE | A_BOLD | A_UNDERLINE;
    case Style::kFaint:
      return A_DIM;
    case Style::kWarning:
      return has_colours ? pair(2) : attr_t{A_UNDERLINE};
    case Style::kBad:
      return pair(1) | A_BOLD;
  }
  return A_NORMAL;
}

Key KeyOfCode(int code) {
  switch (code) {
    case ERR:
      return Key::kNone;
    case KEY_UP:
      return Key::kUp;
    case KEY_DOWN:
      return Key::kDown;
    case KEY_PPAGE:
      return Key::kPageUp;
    case KEY_NPAGE:
      return Key::kPageDown;
    case KEY_HOME:
      return Key::kHome;
    case KEY_END:
      return Key::kEnd;
    default:
      return KeyOf(code);
  }
}

/// Of the terminal that is set; what is written to it only follows with Draw().
void SetModes() {
  ::cbreak();
  ::noecho();
  ::nonl();
  ::keypad(stdscr, true);
  ::nodelay(stdscr, true);
  ::set_escdelay(kKeyBytesApart);
  ::curs_set(0);
  // What ncurses would do with it is not safe where it interrupts ncurses.
  for (const int signal : {SIGTSTP, SIGINT, SIGTERM, SIGWINCH}) {
    ::signal(signal, SIG_DFL);
  }
}

}  // namespace

void UseTerminalsCharacters() {
  const bool is_known = std::setlocale(LC_CTYPE, "") != nullptr;
  if (!is_known || std::string(::nl_langinfo(CODESET)) != "UTF-8") {
    std::setlocale(LC_CTYPE, "C");
  }
}

absl::Status CheckTerminal(const Environment& environment) {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) {
    return NoScreen(absl::StrCat("standard ", ::isatty(STDIN_FILENO) == 0 ? "input" : "output",
                                 " is no terminal"));
  }
  const std::string name = ValueOf(environment, "TERM");
  int found = 0;
  if (name.empty() || ::setupterm(name.c_str(), STDOUT_FILENO, &found) == ERR ||
      Capability("cup").empty()) {
    return NoScreen(name.empty()
                        ? "TERM does not say which terminal this is"
                        : absl::StrCat("no screen can be drawn on a terminal of TERM=", name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Screen>> Screen::Open(const Environment& environment) {
  if (absl::Status status = CheckTerminal(environment); !status.ok()) {
    return status;
  }
  termios mode{};
  ::tcgetattr(STDOUT_FILENO, &mode);
  RestoreTerminalInCrash(mode, absl::StrCat(Capability("sgr0"), Capability("rmkx"),
                                            Capability("cnorm"), Capability("rmcup")));
  SCREEN* const terminal = ::newterm(nullptr, stdout, stdin);
  if (terminal == nullptr) {
    CrashAsUsual();
    return NoScreen("the terminal cannot be used");
  }
  SetModes();
  const bool has_colours = WantsColours(environment);
  if (has_colours) {
    BeginColours();
  }
  return std::unique_ptr<Screen>(new Screen(terminal, has_colours));
}

Screen::Screen(void* terminal, bool has_colours) : terminal_(terminal), has_colours_(has_colours) {}

Screen::~Screen() {
  ::endwin();
  ::delscreen(static_cast<SCREEN*>(terminal_));
  CrashAsUsual();
}

Size Screen::size() const { return {::getmaxy(stdscr), ::getmaxx(stdscr)}; }

void Screen::Draw(const Frame& frame) {
  ::werase(stdscr);
  for (size_t row = 0; row < frame.lines.size(); ++row) {
    ::wmove(stdscr, static_cast<int>(row), 0);
    for (const Span& span : frame.lines[row]) {
      ::wattrset(stdscr, static_cast<int>(AttributesOf(span.style, has_colours_)));
      ::waddnstr(stdscr, span.text.c_str(), static_cast<int>(span.text.size()));
    }
  }
  ::wattrset(stdscr, A_NORMAL);
  ::wrefresh(stdscr);
}

Key Screen::Read() { return KeyOfCode(::wgetch(stdscr)); }

void Screen::Resize() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
    ::resizeterm(size.ws_row, size.ws_col);
  }
}

void Screen::Leave() { ::endwin(); }

void Screen::Return() {
  ::endwin();  // Somebody else may have set the terminal's modes.
  ::wrefresh(stdscr);
  Resize();
  ::clearok(stdscr, true);
}

}  // namespace fsdprun::top
