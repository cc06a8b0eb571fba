#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/flag_table.h"

namespace fsdprun {

/// A flag's text and where it came from: "--nnodes" or "PET_NNODES".
struct RawValue {
  std::string source;
  std::string text;
};

/// The given flags, not yet parsed. Keyed by the flag's name in the table; switches hold "0" or
/// "1".
struct RawFlags {
  std::map<std::string, RawValue> values;
  /// The first word that is no flag, and all that follow it.
  std::vector<std::string> program;

  /// nullptr if the flag was not given.
  const RawValue* Find(const char* name) const;
  bool IsOn(const char* name) const;
};

/// "SOURCE: 'TEXT' is not EXPECTED", as INVALID_ARGUMENT.
absl::Status InvalidValue(const RawValue& value, absl::string_view expected);

/// The flags among `args`, up to the program. Pure. Errors: INVALID_ARGUMENT.
absl::StatusOr<RawFlags> FlagsOfArguments(CliProgram program, const std::vector<std::string>& args);

/// The flags that are set by PET_* variables in `environment`. Pure. Errors: INVALID_ARGUMENT.
absl::StatusOr<RawFlags> FlagsOfEnvironment(CliProgram program, const Environment& environment);

}  // namespace fsdprun
