#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "launcher/metrics/metric_page.h"

namespace fsdprun {

/// What the kernel says of a process.
struct ProcessUsage {
  /// User and system time.
  double cpu_s = 0;
  uint64_t resident_bytes = 0;
  double began_unix_s = 0;
};

/// What the numbers in /proc are counted in.
struct ProcessUnits {
  double ticks_per_s = 100;
  uint64_t page_bytes = 4096;
  /// When the machine started: btime of /proc/stat.
  double boot_unix_s = 0;
};

/// Of the text of /proc/<pid>/stat; empty if it is none. Pure.
std::optional<ProcessUsage> ParseProcessUsage(std::string_view text, const ProcessUnits& units);

/// This program and its process. Pure.
void CollectProcess(const ProcessUsage& own, MetricPage* page);

}  // namespace fsdprun
