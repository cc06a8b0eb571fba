#pragma once

#include <cstdint>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/estimate/estimated_weights.h"

namespace fsdprun::worker {

// Note [What activations take]
// What autograd keeps of a forward is a matter of the operations that the models are made of
// (worker/models), and so is this. In units of T tokens of one forward times the width of a tensor:
//
//   block of a decoder     6 x hidden, and queries, keys, values and the output of attention (keys
//   (reference)            and values as often as heads of queries share them), 4 x intermediate
//   the same, fused        4 x hidden, queries, keys, values, output, 3 x intermediate; 4 x in
//                          bfloat16 on CPUs
//   block of GPT-2         8 x hidden, 2 x inner
//   behind the blocks      3 x hidden (reference), 2 x hidden (fused, GPT-2)
//
// each times the bytes of precision.param; norms are computed in float32, and keep that. A layer
// that sees a window only keeps its mask, seq_len x seq_len. With activation checkpointing a block
// keeps its input, and one block at a time has all of this. An adapter keeps T x its rank.
//
// Of what is frozen less is kept: a linear layer keeps its input for the gradient of its weight or
// of its adapter, and a norm the normalised input for that of its weight. Blocks before the first
// weight that is trained, embeddings among them, keep nothing, and have no backward.
//
// Most is there at one of three moments:
//
//   the loss     with the activations of all blocks: the logits' logarithms of probabilities and
//                two gradients of that size, 12 x T x vocabulary bytes. Fused: the gradients of the
//                last hidden states and of the head, in half precision that in float32 as well if
//                there are several chunks, and the logits of a chunk (worker/models/fused/
//                loss_chunks.h)
//   a block      the first in backward: the activations of all blocks, and gradients of the widest
//                tensors in it. A GPU has the gradients of a unit's weights beside those that are
//                reduced
//   the end      of backward: the gradient of the embedding, thrice where it is the head, too
//
// Of GPUs, fused is counted as the kernels of worker/models/fused/cuda have it: a machine without
// NVRTC takes more, an intermediate in each block and the logits of a chunk in float32.
//
// Not counted: what libraries take for themselves (a CUDA context, NCCL's buffers), workspaces of
// kernels, and what is lost between pieces of memory.

/// Bytes on a rank.
struct Activations {
  /// What the blocks keep from forward to backward.
  int64_t blocks = 0;
  /// What one block has that is computed again; 0 without activation checkpointing.
  int64_t recomputed = 0;
  /// The most at the loss, besides: logits, their gradients, and what is behind the blocks.
  int64_t at_loss = 0;
  /// The most in the backward of a block, besides.
  int64_t in_block = 0;
  /// At the end of backward, alone.
  int64_t at_end = 0;
  /// Tables of positions and masks.
  int64_t tables = 0;

  int64_t peak() const;
};

/// What the memory of a forward depends on, beside the model.
struct ForwardShape {
  /// Windows of a forward, and the tokens of each.
  int64_t windows = 1;
  int64_t seq_len = 1;
  /// Bytes of precision.param.
  int64_t element_bytes = 4;
  bool is_gpu = true;
  bool has_fused_kernels = false;
  bool checkpoints_blocks = false;

  int64_t tokens() const { return windows * seq_len; }
};

/// Note [What activations take]. `weights`: those of a run of `model`, and of its adapters. Pure.
/// Precondition: it is less than 2^60 bytes, as EstimateRun() sees to.
Activations ActivationsOf(const ModelConfig& model, const std::vector<EstimatedWeight>& weights,
                          const ForwardShape& shape);

}  // namespace fsdprun::worker
