#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>

namespace fsdp {

/// Calls `use(begin, numel)` for pieces of [0, numel) that together fit a cache, which the threads
/// share; on a device once, for all of it. What `use` computes element by element does not depend
/// on where pieces end. Without autograd.
template <class Use>
void for_pieces(int64_t numel, c10::Device device, Use use) {
  constexpr int64_t kPiece = 32 * 1024;
  if (numel == 0) {
    return;
  }
  if (!device.is_cpu()) {
    c10::InferenceMode no_autograd;
    use(int64_t{0}, numel);
    return;
  }
  at::parallel_for(0, (numel + kPiece - 1) / kPiece, 1, [&](int64_t from, int64_t to) {
    c10::InferenceMode no_autograd;  // per thread, and cheaper than no_grad
    for (int64_t piece = from; piece < to; ++piece) {
      use(piece * kPiece, std::min(kPiece, numel - piece * kPiece));
    }
  });
}

}  // namespace fsdp
