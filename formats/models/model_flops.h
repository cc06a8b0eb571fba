#pragma once

#include <cstdint>

#include "formats/models/model_config.h"

namespace fsdprun {

/// Floating-point operations of one token's forward and backward in training, in windows of
/// `seq_len` tokens:
///
///   6 * M + 12 * sum over layers of heads * head_dim * min(seq_len, window of the layer)
///
/// M: elements of all matrices that the token is multiplied with, the head among them also where it
/// is the embedding; a row of an embedding is looked up and not multiplied. A multiplication and an
/// addition count as two; backward has twice the operations of forward. The second term is the
/// scores and the sums of attention over whole windows, as nanoGPT and torchtitan count them: that
/// half of them are masked saves kernels work, and counts as their merit. What is recomputed by
/// activation checkpointing does not count. With `has_frozen_matrices`, as under adapters, whose
/// own operations are left out, it is 4 * M: backward passes through the matrices and has no
/// gradients of them. Pure.
double ModelFlopsPerToken(const ModelConfig& config, int64_t seq_len,
                          bool has_frozen_matrices = false);

}  // namespace fsdprun
