#include "launcher/metrics/process_metrics.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "proto/cluster/build_info.h"

namespace fsdprun {
namespace {

// Of proc(5), less the pid and the name, which may have spaces in it.
constexpr size_t kUserTicks = 11;
constexpr size_t kSystemTicks = 12;
constexpr size_t kStartTicks = 19;
constexpr size_t kResidentPages = 21;

}  // namespace

std::optional<ProcessUsage> ParseProcessUsage(std::string_view text, const ProcessUnits& units) {
  const size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string rest(text.substr(end_of_name + 1));
  const std::vector<absl::string_view> fields =
      absl::StrSplit(rest, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t user = 0, system = 0, start = 0, pages = 0;
  if (fields.size() <= kResidentPages || !absl::SimpleAtoi(fields[kUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kSystemTicks], &system) ||
      !absl::SimpleAtoi(fields[kStartTicks], &start) ||
      !absl::SimpleAtoi(fields[kResidentPages], &pages)) {
    return std::nullopt;
  }
  return ProcessUsage{
      .cpu_s = static_cast<double>(user + system) / units.ticks_per_s,
      .resident_bytes = pages * units.page_bytes,
      .began_unix_s = units.boot_unix_s + static_cast<double>(start) / units.ticks_per_s};
}

void CollectProcess(const ProcessUsage& own, MetricPage* page) {
  page->Gauge("build_info", "The release and the protocol of this process; always 1.", 1,
              {{"release", kRelease}, {"protocol", std::to_string(kProtocol)}});
  page->Counter("process_cpu_seconds_total", "Processor time of this process.", own.cpu_s);
  page->Gauge("process_resident_memory_bytes", "Memory of this process.",
              static_cast<double>(own.resident_bytes));
  page->Gauge("process_start_time_seconds", "When this process began.", own.began_unix_s);
}

}  // namespace fsdprun
