#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "formats/models/decoder/decoder_config.h"

namespace fsdprun::worker {

/// Inverse frequencies of the rotary embedding, float32 [head_dim / 2] on the CPU.
/// Source: "default" and "llama3" of Hugging Face's modeling_rope_utils; Llama 3.1's published
/// scaling.
at::Tensor RopeInverseFrequencies(const DecoderConfig& config);

/// cos and sin for positions 0 .. length-1, float32 [1, length, head_dim], second half = first half
/// (rotate-half layout).
std::pair<at::Tensor, at::Tensor> RopeTables(const DecoderConfig& config, int64_t length,
                                             at::Device device);

/// Rotates x: [batch, heads, length, head_dim] by cos, sin: [1, length, head_dim].
at::Tensor ApplyRope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace fsdprun::worker
