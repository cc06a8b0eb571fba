#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
/// Signals are left to others. Thread: one.
class Screen {
 public:
  /// Takes the terminal. Errors: as CheckTerminal().
  static absl::StatusOr<std::unique_ptr<Screen>> Open(const Environment& environment);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  Size size() const;
  void Draw(const Frame& frame);
  /// A key that has been pressed; Key::kNone: none. Does not wait.
  Key Read();
  /// The window may have another size.
  void Resize();
  /// Gives the terminal back for a while.
  void Leave();
  /// Takes it, whatever has become of it meanwhile; to be followed by Draw().
  void Return();

 private:
  explicit Screen(void* terminal, bool has_colours);

  void* const terminal_;
  const bool has_colours_;
};

}  // namespace fsdprun::top
