#pragma once

#include <cstdint>
#include <string>

namespace fsdprun::worker {

/// Arguments of `fsdp-train sample`.
struct SampleRequest {
  /// A checkpoint, or a directory of checkpoints, whose newest is used.
  std::string checkpoint;
  std::string prompt;
  int64_t tokens = 200;
  /// 0: greedy.
  double temperature = 1;
  uint64_t seed = 0;
  /// "bytes" or a file; empty: the one that the checkpoint's model was trained with.
  std::string tokenizer = {};
};

}  // namespace fsdprun::worker
