#include "launcher/run/cpu_list.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

/// More than any kernel is built for.
constexpr int kCpuNumbers = 65536;

}  // namespace

std::optional<std::vector<int>> ParseCpuList(absl::string_view text) {
  std::set<int> cpus;
  for (absl::string_view item :
       absl::StrSplit(absl::StripAsciiWhitespace(text), ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> ends =
        absl::StrSplit(absl::StripAsciiWhitespace(item), '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= kCpuNumbers) {
      return std::nullopt;
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.insert(cpu);
    }
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

std::string CpuListText(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) {
      absl::StrAppend(&text, "-", cpus[last]);
    }
    i = last + 1;
  }
  return text;
}

}  // namespace fsdprun
