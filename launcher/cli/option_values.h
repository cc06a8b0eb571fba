#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

// Texts of options as values. Pure. Errors: OUT_OF_RANGE with the source, the text and what was
// expected.

/// The text that is asked for instead of what the command does: --help, --man, --version; kRun if
/// none is.
Request TextRequest(const RawOptions& options);

absl::StatusOr<int> ToInt(const RawValue& value, int minimum, absl::string_view expected);

struct NodeNumbers {
  int min = 1;
  int max = 1;
};
/// `N` or `MIN:MAX`.
absl::StatusOr<NodeNumbers> ToNodeNumbers(const RawValue& value);

absl::StatusOr<uint16_t> ToPort(const RawValue& value);

absl::StatusOr<std::chrono::milliseconds> ToSeconds(const RawValue& value, bool zero_allowed);

/// True or false: one of the words `1 true t yes y` or `0 false f no n`, in any case.
absl::StatusOr<bool> ToBool(const RawValue& value);

/// One of `words`. The error names the nearest.
absl::StatusOr<std::string> ToWord(const RawValue& value, const std::vector<std::string>& words);

/// `3`, or `0:1,1:2` by local rank; the last of equal ranks counts.
absl::StatusOr<StreamSets> ToStreamSets(const RawValue& value);

/// `0,2`: unset for an empty text.
absl::StatusOr<std::optional<std::set<int>>> ToLocalRanks(const RawValue& value);

/// Parts between commas; `,,` is a comma. As torchrun: empty parts are left out.
std::vector<std::string> ToTexts(absl::string_view text);

/// A comma-separated list of names such as SIGTERM, as Python's signal module has them.
struct SignalList {
  std::vector<int> signals;
  std::vector<std::string> unknown;  ///< Also what no program can handle.
};
SignalList ParseSignals(absl::string_view text);

/// Brackets can only surround an IPv6 address that is followed by a port.
bool IsHost(absl::string_view host);

/// `host`, `host:port`, `[v6]`, `[v6]:port`; a missing port becomes `default_port`. Errors:
/// INVALID_ARGUMENT.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, uint16_t default_port);

}  // namespace fsdprun
