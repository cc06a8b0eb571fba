#pragma once

#include <cstdint>

namespace fsdprun::worker::fused {

/// How LinearCrossEntropy() goes through the tokens.
struct CrossEntropyChunks {
  int64_t rows = 0;  // of logits that exist at a time, at least 1
  // Loops of our own on the CPU, and kernels on CUDA; else ATen's operations.
  bool has_row_kernels = true;
};

/// 8 Mi logits at a time; of a large vocabulary more, 256 rows on the CPU and 2048 on a device. A
/// chunk of r rows is 6 r operations for each element of the weight, whose gradient it reads and
/// writes in float32, beside the weight itself: r * 6 / 16 operations for each byte. So many do as
/// CPUs do between two accesses to memory, at least 15, and devices, about 300. Pure.
CrossEntropyChunks ChunksFor(int64_t vocab_size, bool is_on_cpu);

}  // namespace fsdprun::worker::fused
