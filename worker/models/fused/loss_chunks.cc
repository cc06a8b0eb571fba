#include "worker/models/fused/loss_chunks.h"

#include <algorithm>

namespace fsdprun::worker::fused {

CrossEntropyChunks ChunksFor(int64_t vocab_size, bool is_on_cpu) {
  constexpr int64_t kLogits = int64_t{8} << 20;
  const int64_t least = is_on_cpu ? 256 : 2048;
  return {.rows = std::max(least, kLogits / std::max<int64_t>(1, vocab_size))};
}

}  // namespace fsdprun::worker::fused
