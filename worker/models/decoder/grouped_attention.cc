#include "worker/models/decoder/grouped_attention.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>

namespace fsdprun::worker {
namespace {

/// [batch, heads, length, dim] -> [batch, heads * groups, length, dim], each head `groups` times.
at::Tensor RepeatHeads(const at::Tensor& x, int64_t groups) {
  if (groups == 1) {
    return x;
  }
  const int64_t batch = x.size(0), heads = x.size(1), length = x.size(2), dim = x.size(3);
  return x.unsqueeze(2)
      .expand({batch, heads, groups, length, dim})
      .reshape({batch, heads * groups, length, dim});
}

}  // namespace

bool HasGroupedKernel(const GroupedAttention& attention) {
  // What scaled_dot_product_attention() itself asks.
  const int64_t backend = at::_fused_sdp_choice(
      attention.q, attention.k, attention.v, attention.mask, /*dropout_p=*/0.0, attention.is_causal,
      /*scale=*/std::nullopt, /*enable_gqa=*/true);
  return backend != static_cast<int64_t>(at::SDPBackend::math) &&
         backend != static_cast<int64_t>(at::SDPBackend::error);
}

at::Tensor Attend(const GroupedAttention& attention, bool repeats) {
  const int64_t groups = attention.q.size(1) / attention.k.size(1);
  const bool is_grouped = groups > 1 && !repeats && HasGroupedKernel(attention);
  return at::scaled_dot_product_attention(
      attention.q, is_grouped ? attention.k : RepeatHeads(attention.k, groups),
      is_grouped ? attention.v : RepeatHeads(attention.v, groups), attention.mask,
      /*dropout_p=*/0.0, attention.is_causal, /*scale=*/std::nullopt, /*enable_gqa=*/is_grouped);
}

}  // namespace fsdprun::worker
