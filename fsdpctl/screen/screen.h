#pragma once

#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "fsdpctl/screen/kept_errors.h"
#include "fsdpctl/screen/terminal_writer.h"
#include "fsdpctl/top/frame.h"
#include "fsdpctl/top/view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::top {

/// Takes the locale's character set, as ScreenText() needs it: of LC_ALL, LC_CTYPE or LANG if it is
/// UTF-8, else ASCII. Before other threads.
void UseTerminalsCharacters();

/// Whether a screen can be drawn here. Errors: FAILED_PRECONDITION, with what can be done instead.
absl::Status CheckTerminal(const Environment& environment);

/// The whole terminal of this process, which gets back how it was found. There is one at most.
/// Signals are left to others. Nothing that it writes is waited for but what takes the terminal and
/// gives it back. Thread: one.
class Screen {
 public:
  /// Takes the terminal. Errors: as CheckTerminal().
  static absl::StatusOr<std::unique_ptr<Screen>> Open(const Environment& environment);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  Size size() const;
  /// False: the terminal has not taken the frame before, and this one is left out.
  bool Draw(const Frame& frame);
  /// Writes what the terminal has not taken yet. It takes more once fd() is writable.
  void Flush() { writer_.Flush(); }
  bool has_unwritten() const { return writer_.has_unwritten(); }
  int fd() const { return writer_.fd(); }
  /// What has been pressed, if anything. Does not wait.
  Press Read();
  /// The next frame is drawn as if nothing were known of what is on the terminal.
  void Redraw();
  /// The window may have another size.
  void Resize();
  /// Gives the terminal back for a while.
  void Leave();
  /// Takes it, whatever has become of it meanwhile; to be followed by Draw().
  void Return();

 private:
  struct Parts;
  class OnTerminal;

  explicit Screen(Parts parts);
  /// What ncurses has to say is kept until the terminal takes it.
  void Collect();

  /// ncurses' own, whose descriptor is that of `sink_` but for the time of an OnTerminal.
  std::FILE* const output_;
  const UniqueFd sink_;
  const UniqueFd tty_;
  void* const terminal_;
  const bool has_colours_;
  TerminalWriter writer_;
  std::unique_ptr<KeptErrors> errors_;
};

}  // namespace fsdprun::top
