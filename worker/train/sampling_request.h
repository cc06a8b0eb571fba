#pragma once

#include <cstdint>
#include <string>

namespace fsdprun::worker {

/// What `fsdp-train sample` was asked for.
struct SampleRequest {
  /// A checkpoint, or a directory whose newest is meant.
  std::string checkpoint;
  std::string prompt;
  int64_t bytes = 200;
  /// 0: always the likeliest byte.
  double temperature = 1;
  uint64_t seed = 0;
};

}  // namespace fsdprun::worker
