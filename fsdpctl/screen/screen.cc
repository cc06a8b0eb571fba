#include "fsdpctl/screen/screen.h"

#include <fcntl.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

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
/// For a terminal that takes no output.
constexpr Duration kLeaveWait = std::chrono::milliseconds(500);

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
    case Style::kFound:
      return A_REVERSE;
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

/// 0: none of ASCII.
int LetterOfCode(int code) {
  constexpr int kLetters = 128;
  switch (code) {
    case '\r':
    case '\n':
    case KEY_ENTER:
      return kEnter;
    case '\b':
    case KEY_BACKSPACE:
      return kBackspace;
    default:
      return code > 0 && code < kLetters ? code : 0;
  }
}

/// If the action is the default one when it begins, ncurses takes SIGTSTP over and ignores it in
/// each refresh, which throws away one that is pending: Ctrl-Z would do nothing now and then.
void KeepStopFromCurses() {
  struct sigaction current {};
  ::sigaction(SIGTSTP, nullptr, &current);
  if (current.sa_handler == SIG_DFL) {
    ::signal(SIGTSTP, [](int) {});
  }
}

/// What ncurses would do with it is not safe where it interrupts ncurses. What was ignored before
/// stays so.
void TakeSignalsFromCurses() {
  for (const int signal : {SIGTSTP, SIGINT, SIGTERM, SIGWINCH}) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_IGN) {
      ::signal(signal, SIG_DFL);
    }
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
  TakeSignalsFromCurses();
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

struct Screen::Parts {
  std::FILE* output = nullptr;
  UniqueFd sink;
  UniqueFd tty;
  void* terminal = nullptr;
  bool has_colours = false;
};

/// While it lives, ncurses has the terminal itself.
class Screen::OnTerminal {
 public:
  explicit OnTerminal(const Screen& screen) : screen_(screen) {
    ::dup2(screen_.tty_.get(), ::fileno(screen_.output_));
  }
  ~OnTerminal() { ::dup2(screen_.sink_.get(), ::fileno(screen_.output_)); }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

 private:
  const Screen& screen_;
};

absl::StatusOr<std::unique_ptr<Screen>> Screen::Open(const Environment& environment) {
  if (absl::Status status = CheckTerminal(environment); !status.ok()) {
    return status;
  }
  termios mode{};
  ::tcgetattr(STDOUT_FILENO, &mode);
  RestoreTerminalInCrash(mode, absl::StrCat(Capability("sgr0"), Capability("rmkx"),
                                            Capability("cnorm"), Capability("rmcup")));
  Parts parts;
  parts.sink.reset(::memfd_create("screen", MFD_CLOEXEC));
  parts.tty.reset(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
  const int output = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  parts.output = output < 0 ? nullptr : ::fdopen(output, "w");
  // The terminal knows its size. COLUMNS and LINES may be those of another one, or of earlier, and
  // ncurses would put them first.
  ::use_env(false);
  ::use_tioctl(true);
  KeepStopFromCurses();
  if (parts.sink.valid() && parts.output != nullptr) {
    parts.terminal = ::newterm(nullptr, parts.output, stdin);
  }
  if (parts.terminal == nullptr) {
    CrashAsUsual();
    return NoScreen("the terminal cannot be used");
  }
  SetModes();
  parts.has_colours = WantsColours(environment);
  if (parts.has_colours) {
    BeginColours();
  }
  std::unique_ptr<Screen> screen(new Screen(std::move(parts)));
  screen->Resize();  // A SIGWINCH of meanwhile is lost.
  return screen;
}

Screen::Screen(Parts parts)
    : output_(parts.output),
      sink_(std::move(parts.sink)),
      tty_(std::move(parts.tty)),
      terminal_(parts.terminal),
      has_colours_(parts.has_colours),
      writer_(STDOUT_FILENO),
      errors_(std::make_unique<KeptErrors>()) {
  ::dup2(sink_.get(), ::fileno(output_));
}

Screen::~Screen() {
  Leave();
  ::delscreen(static_cast<SCREEN*>(terminal_));
  std::fclose(output_);
  CrashAsUsual();
}

Size Screen::size() const { return {::getmaxy(stdscr), ::getmaxx(stdscr)}; }

bool Screen::Draw(const Frame& frame) {
  writer_.Flush();
  if (writer_.has_unwritten()) {
    return false;
  }
  if (::isendwin()) {
    return true;
  }
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
  Collect();
  return true;
}

void Screen::Collect() {
  const off_t size = ::lseek(sink_.get(), 0, SEEK_CUR);
  std::string bytes(static_cast<size_t>(std::max<off_t>(0, size)), '\0');
  const ssize_t read = ::pread(sink_.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, read)));
  ::lseek(sink_.get(), 0, SEEK_SET);
  writer_.Add(std::move(bytes));
  writer_.Flush();
}

Press Screen::Read() {
  if (::isendwin()) {
    return {};
  }
  int code = ERR;
  do {
    code = ::wgetch(stdscr);
    Collect();  // It draws what has changed.
    // Nobody has pressed what Resize() leaves.
  } while (code == KEY_RESIZE);
  return {KeyOfCode(code), LetterOfCode(code)};
}

void Screen::Redraw() { ::clearok(stdscr, true); }

void Screen::Resize() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
    ::resizeterm(size.ws_row, size.ws_col);
  }
}

void Screen::Leave() {
  writer_.Finish(kLeaveWait);
  const OnTerminal terminal(*this);
  ::endwin();
}

void Screen::Return() {
  {
    const OnTerminal terminal(*this);
    ::endwin();  // Somebody else may have set the terminal's modes.
    ::wrefresh(stdscr);
  }
  Resize();
  Redraw();
}

}  // namespace fsdprun::top
