#include "launcher/chaos/plan/length.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fsdprun::chaos {
namespace {

constexpr double kLongestSeconds = 1e8;
constexpr int kSecondsOfMinute = 60;
constexpr int kSecondsOfHour = 3600;

}  // namespace

std::optional<Duration> ParseLength(absl::string_view text) {
  double unit = 1;
  // The longer names first: "ms" ends with "s".
  for (const auto& [name, seconds] :
       {std::pair("ms", 1e-3), std::pair("min", 60.0), std::pair("h", 3600.0), std::pair("m", 60.0),
        std::pair("s", 1.0)}) {
    if (absl::ConsumeSuffix(&text, name)) {
      unit = seconds;
      break;
    }
  }
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !(number >= 0) || number * unit > kLongestSeconds) {
    return std::nullopt;
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(number * unit));
}

std::optional<LengthRange> ParseLengthRange(absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const std::optional<Duration> min = ParseLength(ends.front());
  const std::optional<Duration> max = ParseLength(ends.back());
  if (!min.has_value() || !max.has_value() || *max < *min) {
    return std::nullopt;
  }
  return LengthRange{*min, *max};
}

std::string LengthText(Duration length) {
  const double seconds = ToSeconds(length);
  if (seconds < kSecondsOfMinute) {
    return absl::StrFormat("%.3g s", seconds);
  }
  const auto whole = static_cast<int64_t>(seconds);
  const bool has_hours = whole >= kSecondsOfHour;
  const int64_t of_unit = has_hours ? kSecondsOfHour : kSecondsOfMinute;
  const int64_t rest = has_hours ? whole % kSecondsOfHour / kSecondsOfMinute : whole % of_unit;
  return absl::StrCat(whole / of_unit, has_hours ? " h" : " min",
                      rest == 0 ? "" : absl::StrCat(" ", rest, has_hours ? " min" : " s"));
}

}  // namespace fsdprun::chaos
