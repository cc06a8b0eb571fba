#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// How many nodes Slurm is asked for.
struct NodeRange {
  int min = 1;
  int max = 1;

  bool operator==(const NodeRange&) const = default;
};

/// `N`, `MIN:MAX` or, as sbatch has it, `MIN-MAX`. Pure. Errors: OUT_OF_RANGE.
absl::StatusOr<NodeRange> ToNodeRange(const RawValue& value);

/// Whether sbatch would take it for a time limit: `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`,
/// `D-HH:MM:SS`, or a word for none. Pure.
bool IsTimeLimit(absl::string_view text);

/// How many seconds such a limit is, in whole minutes as sbatch counts; unset for none. Pure.
std::optional<int64_t> TimeLimitSeconds(absl::string_view text);

/// Whether sbatch would take it for --signal: `[R][B]:` in front, `@SECONDS` behind a signal's name
/// or number. Pure.
bool IsSignalRequest(absl::string_view text);

/// How long before the time limit the signal of such a request is asked for. Pure.
int64_t SignalSeconds(absl::string_view text);

/// A job as people name it: `12`, or `12_3` of an array. Pure.
bool IsJobName(absl::string_view text);

}  // namespace fsdprun
