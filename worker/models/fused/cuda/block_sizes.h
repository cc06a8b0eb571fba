#pragma once

// Threads of a block, for the kernels' __launch_bounds__ and for what launches them. Without bounds
// a kernel may take more registers than a block of so many threads has, and is not launched then.

namespace fsdprun::worker::fused::block_sizes {

/// One for each pack of numbers, up to these.
constexpr int kRope = 256;
constexpr int kCrossEntropy = 1024;

/// Always as many.
constexpr int kSwiglu = 256;

}  // namespace fsdprun::worker::fused::block_sizes
