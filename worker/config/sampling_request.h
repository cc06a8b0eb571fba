#pragma once

#include <cstdint>
#include <string>

namespace fsdprun::worker {

/// Arguments of `fsdp-train sample`.
struct SampleRequest {
  /// A checkpoint, or a directory of checkpoints, whose newest is used.
  std::string checkpoint;
  std::string prompt;
  int64_t bytes = 200;
  /// 0: greedy.
  double temperature = 1;
  uint64_t seed = 0;
};

}  // namespace fsdprun::worker
