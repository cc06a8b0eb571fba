#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun::doctor {

/// What the cgroups of this process allow, of version 1 or 2, each with those above it as far as
/// they can be seen: the lowest limit counts.
struct CgroupLimits {
  /// In bytes.
  std::optional<uint64_t> memory;
  /// Of the group that has that limit, without what can be given back.
  uint64_t memory_used = 0;
  /// CPUs' worth of time.
  std::optional<double> cpus;
  std::optional<uint64_t> pids;
  uint64_t pids_used = 0;
};

/// Below `root`, which is empty except in tests.
CgroupLimits ReadCgroups(const std::string& root);

}  // namespace fsdprun::doctor
