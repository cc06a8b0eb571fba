#include "fsdpctl/slurm/slurm_values.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

constexpr int64_t kMinute = 60;
constexpr int64_t kHour = 60 * kMinute;
constexpr int64_t kDay = 24 * kHour;
/// sbatch's, of a signal without a time.
constexpr int64_t kSignalSeconds = 60;

bool IsDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

}  // namespace

absl::StatusOr<NodeRange> ToNodeRange(const RawValue& value) {
  const char separator = absl::StrContains(value.text, ':') ? ':' : '-';
  const std::vector<std::string> parts = absl::StrSplit(value.text, absl::MaxSplits(separator, 1));
  NodeRange range;
  if (!IsDigits(parts.front()) || !IsDigits(parts.back()) ||
      !absl::SimpleAtoi(parts.front(), &range.min) || !absl::SimpleAtoi(parts.back(), &range.max) ||
      range.min < 1 || range.max < range.min) {
    return InvalidValue(value, "a number of nodes of 1 or more, or MIN:MAX with MAX >= MIN");
  }
  return range;
}

bool IsTimeLimit(absl::string_view text) {
  for (const char* word : {"UNLIMITED", "INFINITE", "-1"}) {
    if (absl::EqualsIgnoreCase(text, word)) {
      return true;
    }
  }
  const size_t dash = text.find('-');
  const bool has_days = dash != absl::string_view::npos;
  const std::vector<absl::string_view> parts =
      absl::StrSplit(has_days ? text.substr(dash + 1) : text, ':');
  return (!has_days || IsDigits(text.substr(0, dash))) && parts.size() <= 3 &&
         std::all_of(parts.begin(), parts.end(), IsDigits);
}

std::optional<int64_t> TimeLimitSeconds(absl::string_view text) {
  if (!IsTimeLimit(text) || !absl::ascii_isdigit(static_cast<unsigned char>(text.front()))) {
    return std::nullopt;
  }
  const size_t dash = text.find('-');
  const bool has_days = dash != absl::string_view::npos;
  const std::vector<absl::string_view> parts =
      absl::StrSplit(has_days ? text.substr(dash + 1) : text, ':');
  int number = 0;
  if (has_days && !absl::SimpleAtoi(text.substr(0, dash), &number)) {
    return std::nullopt;
  }
  int64_t seconds = has_days ? number * kDay : 0;
  int64_t unit = has_days || parts.size() == 3 ? kHour : kMinute;
  for (const absl::string_view part : parts) {
    if (!absl::SimpleAtoi(part, &number)) {
      return std::nullopt;
    }
    seconds += number * unit;
    unit /= kMinute;
  }
  // 0 is none, too.
  return seconds == 0 ? std::nullopt : std::optional((seconds + kMinute - 1) / kMinute * kMinute);
}

bool IsSignalRequest(absl::string_view text) {
  const size_t colon = text.find(':');
  if (colon != absl::string_view::npos) {
    const std::string where = absl::AsciiStrToUpper(text.substr(0, colon));
    if (where != "B" && where != "R" && where != "BR" && where != "RB") {
      return false;
    }
    text.remove_prefix(colon + 1);
  }
  const size_t at = text.find('@');
  if (at != absl::string_view::npos && !IsDigits(text.substr(at + 1))) {
    return false;
  }
  const std::string name = absl::AsciiStrToUpper(text.substr(0, at));
  const std::string full = absl::StrCat(absl::StartsWith(name, "SIG") ? "" : "SIG", name);
  return IsDigits(name) || (!name.empty() && ParseSignals(full).unknown.empty());
}

int64_t SignalSeconds(absl::string_view text) {
  const size_t at = text.find('@');
  int seconds = 0;
  return at != absl::string_view::npos && absl::SimpleAtoi(text.substr(at + 1), &seconds)
             ? seconds
             : kSignalSeconds;
}

bool IsJobName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('_', 1));
  return std::all_of(parts.begin(), parts.end(), IsDigits);
}

}  // namespace fsdprun
