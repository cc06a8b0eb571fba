#pragma once

#include <termios.h>

#include <string>

namespace fsdprun::top {

/// From here on a crash of this process first writes `restoring` to the terminal of standard output
/// and gives it `mode` back, and then ends it as it would have. Once per process.
void RestoreTerminalInCrash(const termios& mode, const std::string& restoring);

/// Not any more.
void CrashAsUsual();

/// Before that it copies what is in the file `kept` to `terminal`; -1: nothing.
void ShowErrorsInCrash(int kept, int terminal);
/// The beginning of it. Safe in a signal handler.
void CopyErrors(int kept, int terminal);

}  // namespace fsdprun::top
