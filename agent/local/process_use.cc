#include "agent/local/process_use.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fsdprun {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

// By their numbers in proc(5), which begin at 1; those behind the command begin with the state.
constexpr size_t kStateField = 3;
constexpr size_t kUserTicksField = 14;
constexpr size_t kSystemTicksField = 15;
constexpr size_t kRssField = 24;

}  // namespace

std::optional<ProcessUse> ParseProcessUse(absl::string_view text, int64_t ns_per_tick,
                                          int64_t page_bytes) {
  const size_t command_end = text.rfind(')');
  if (command_end == absl::string_view::npos) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(command_end + 1), ' ', absl::SkipEmpty());
  const auto number = [&fields](size_t field, int64_t& value) {
    return field - kStateField < fields.size() &&
           absl::SimpleAtoi(fields[field - kStateField], &value) && value >= 0;
  };
  int64_t user = 0;
  int64_t system = 0;
  int64_t pages = 0;
  if (fields.empty() || fields[0].size() != 1 || !number(kUserTicksField, user) ||
      !number(kSystemTicksField, system) || !number(kRssField, pages)) {
    return std::nullopt;
  }
  return ProcessUse{.state = fields[0][0],
                    .cpu_ns = (user + system) * ns_per_tick,
                    .rss_bytes = pages * page_bytes};
}

ProcessGauge::ProcessGauge(pid_t pid)
    : pid_(pid),
      stat_(::open(absl::StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC)) {}

std::optional<ProcessUse> ProcessGauge::Read() const {
  static const int64_t ns_per_tick = kNsPerSecond / ::sysconf(_SC_CLK_TCK);
  static const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  std::array<char, 1024> text;
  const ssize_t size =
      stat_.valid() ? ::pread(stat_.get(), text.data(), text.size(), 0) : ssize_t{-1};
  return size <= 0
             ? std::nullopt
             : ParseProcessUse({text.data(), static_cast<size_t>(size)}, ns_per_tick, page_bytes);
}

int64_t ReadPssBytes(pid_t pid) {
  const UniqueFd file(
      ::open(absl::StrCat("/proc/", pid, "/smaps_rollup").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text;
  const ssize_t size = file.valid() ? ::read(file.get(), text.data(), text.size()) : ssize_t{-1};
  return size <= 0 ? 0 : ParsePssBytes({text.data(), static_cast<size_t>(size)});
}

int64_t ParsePssBytes(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t kib = 0;
    if (absl::ConsumePrefix(&line, "Pss:") && absl::ConsumeSuffix(&line, " kB") &&
        absl::SimpleAtoi(line, &kib)) {
      return kib * 1024;
    }
  }
  return 0;
}

}  // namespace fsdprun
