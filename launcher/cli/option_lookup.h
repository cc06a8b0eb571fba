#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

// Note [Names of options]
// A name is looked up as torchrun's parser does, so that what is written for torchrun means the
// same here: dashes and underscores are the same; an exact name wins; then a prefix that fits one
// option of torchrun; then one that fits one of our own. So no option of our own can make a prefix
// ambiguous that torchrun's users write. (A unit test: no name of our own is a
// prefix of one of torchrun's.) More lenient than argparse in one thing: both spellings of an
// option count as one candidate.

/// The option meant by `written` (no leading dashes). Pure. Errors: INVALID_ARGUMENT with the
/// candidates or the nearest option.
absl::StatusOr<const OptionSpec*> FindOption(CliProgram program, absl::string_view written);

/// The option with this one-letter name. Pure. Errors: as FindOption's.
absl::StatusOr<const OptionSpec*> FindLetter(CliProgram program, char letter);

/// Whether argparse would take the word for an option, so that it is neither the program nor the
/// value of the option before it: it begins with a dash, and is no lone dash, no negative number
/// and has no blank in its name. Pure.
bool LooksLikeOption(absl::string_view word);

}  // namespace fsdprun
