#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fsdprun {

/// The environment of a process: name to value.
using Environment = std::map<std::string, std::string>;

/// The two programs that share one flag table.
enum class CliProgram { kFsdprun, kFsdpAgent };

const char* ProgramName(CliProgram program);

enum class FlagGroup { kNodes, kRendezvous, kFailures, kOutput, kProgram, kOther };

struct FlagSpec {
  const char* name;  ///< Long name with dashes; underscores are accepted on the command line too.
  char short_name;   ///< 0 = none.
  bool takes_value;
  const char* metavar;
  const char* default_text;
  FlagGroup group;
  bool launcher_only;  ///< Not offered by fsdp-agent.
  const char* help;
};

/// All flags, in the order of the help text.
const std::vector<FlagSpec>& FlagTable();

/// `nproc-per-node` -> `PET_NPROC_PER_NODE`.
std::string FlagVariableName(const FlagSpec& flag);

bool Offers(CliProgram program, const FlagSpec& flag);

/// The flag meant by `written` (no leading dashes; dashes and underscores are the same): its exact
/// name or an unambiguous prefix of it. Errors: INVALID_ARGUMENT with the nearest flag, the
/// candidates, or a note that torchrun's flag is not supported.
absl::StatusOr<const FlagSpec*> FindFlag(CliProgram program, absl::string_view written);

/// The flag with this one-letter name, or nullptr.
const FlagSpec* FindShortFlag(CliProgram program, char letter);

/// "torchrun's --tee is not supported yet" if `written` is a flag of torchrun (long name without
/// dashes, or its letter) that is not offered here; else empty.
std::string UnsupportedFlag(absl::string_view written);

/// Help grouped by task, with defaults, environment variables, signals and exit codes.
std::string HelpText(CliProgram program);

}  // namespace fsdprun
