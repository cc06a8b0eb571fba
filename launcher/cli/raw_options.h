#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// An option's text and where it came from: "--nnodes" or "PET_NNODES".
struct RawValue {
  std::string source;
  std::string text;
};

/// The given options, not yet parsed. Keyed by the option's name in the table; switches hold "0" or
/// "1".
struct RawOptions {
  std::map<std::string, RawValue> values;
  /// The first word that is no option, and all that follow it.
  std::vector<std::string> program;

  /// nullptr if the option was not given.
  const RawValue* Find(const char* name) const;
  bool IsOn(const char* name) const;
  /// Empty if the option was not given.
  std::string TextOf(const char* name) const;
};

// Note [Usage errors and value errors]
// torchrun's parser exits with 2, what looks at the values afterwards fails with 1; and whatever is
// wrong with the usage is told first. The same here: INVALID_ARGUMENT is a usage error (an unknown
// option, a missing value, text where a number belongs, no program), OUT_OF_RANGE a value that
// means nothing.

/// "SOURCE: 'TEXT' is not EXPECTED", as OUT_OF_RANGE.
absl::Status InvalidValue(const RawValue& value, absl::string_view expected);

/// The options among `args`, up to the program. Pure. Errors: INVALID_ARGUMENT.
absl::StatusOr<RawOptions> OptionsOfArguments(CliProgram program,
                                              const std::vector<std::string>& args);

/// The same where options may stand before, between and behind operands, which become the program.
/// Pure. Errors: INVALID_ARGUMENT.
absl::StatusOr<RawOptions> OptionsAroundOperands(CliProgram program, std::vector<std::string> args);

/// The options that are set by PET_* variables in `environment`. An empty one is not set. Pure.
RawOptions OptionsOfEnvironment(CliProgram program, const Environment& environment);

/// Whether numbers are numbers: argparse's part of the check, on the command line and in variables.
/// Pure. Errors: INVALID_ARGUMENT, and OUT_OF_RANGE for a switch, which only a variable can give a
/// text.
absl::Status CheckNumbers(const RawOptions& options);

}  // namespace fsdprun
