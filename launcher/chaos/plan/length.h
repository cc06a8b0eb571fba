#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/mono_time.h"

namespace fsdprun::chaos {

/// `2`, `1.5s`, `200ms`, `3min` or `1h`; without a unit, seconds. Nothing if it is none, or
/// negative. Pure.
std::optional<Duration> ParseLength(absl::string_view text);

struct LengthRange {
  Duration min{};
  Duration max{};

  bool operator==(const LengthRange&) const = default;
};
/// `MIN:MAX`, or one length. Pure.
std::optional<LengthRange> ParseLengthRange(absl::string_view text);

/// `1.25 s`, `3 min 20 s`. Pure.
std::string LengthText(Duration length);

}  // namespace fsdprun::chaos
