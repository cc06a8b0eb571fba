#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun::worker {

/// Arguments of `fsdp-train estimate`, and of `fsdp-train check`, which has only the ranks.
struct EstimateRequest {
  /// 0: as many as there are.
  int64_t ranks = 0;
  /// A GPU's name, such as "H100"; empty: not said.
  std::string device;
  /// Of one device, in bytes.
  std::optional<int64_t> device_memory;
  /// Of one device, in operations per second.
  std::optional<double> peak_flops;
  /// What part of that a run makes use of.
  double mfu = 0.4;
  /// Bytes in a second to and from a rank.
  double bandwidth = 50e9;
  bool is_json = false;
};

}  // namespace fsdprun::worker
