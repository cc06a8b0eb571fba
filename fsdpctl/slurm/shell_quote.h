#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// The word as bash reads it back, unchanged whatever bytes it has (but NUL, which no word can
/// have), on one line and in any locale. Pure.
std::string ShellQuoted(absl::string_view word);

/// The value of an option as sbatch reads it back from a line `#SBATCH --option=VALUE`. The value
/// is IsDirectiveValue(). Pure.
std::string DirectiveQuoted(absl::string_view value);

/// Whether sbatch can read it from a line at all: no control characters, and not too long for its
/// buffer. Pure.
bool IsDirectiveValue(absl::string_view value);

}  // namespace fsdprun
