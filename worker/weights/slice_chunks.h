#pragma once

#include <fsdp/fully_shard.h>

#include <algorithm>
#include <cstdint>

#include "fsdp_runtime/plan/box.h"

namespace fsdprun::worker {

/// Calls `use(offset in the slice, offset in the tensor, count)` for contiguous pieces of the
/// slice, which are together all of it, of at most 4 Mi elements.
template <class Use>
void ForEachChunk(const fsdp::LocalShard& slice, Use use) {
  constexpr int64_t kChunkElements = int64_t{4} << 20;
  const fsdp::Box whole = fsdp::plan::whole_box(slice.global_shape);
  int64_t box_begin = 0;
  for (const fsdp::Box& box : slice.boxes) {
    fsdp::plan::for_each_run(box, whole, box, [&](int64_t from, int64_t to, int64_t numel) {
      for (int64_t done = 0; done < numel; done += kChunkElements) {
        use(box_begin + to + done, from + done, std::min(kChunkElements, numel - done));
      }
    });
    box_begin += fsdp::plan::numel_of(box);
  }
}

}  // namespace fsdprun::worker
