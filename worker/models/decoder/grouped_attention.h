#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fsdprun::worker {

/// What attends to what. q: [batch, heads, length, dim]; k, v: [batch, key heads, all tokens, dim],
/// each for the same number of heads of q.
struct GroupedAttention {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  std::optional<at::Tensor> mask;  // bool [length, all tokens], true where a row sees a column
  bool is_causal = false;          // each sees all up to itself; only without mask
};

/// Whether ATen has, for these, a kernel that takes keys and values without a copy for each head of
/// q. Else its fallback would take them, which keeps [length, all tokens] scores for each head.
bool HasGroupedKernel(const GroupedAttention& attention);

/// softmax(q k^T / sqrt(dim)) v: [batch, heads, length, dim]. `repeats`: keys and values are copied
/// for each head of q, as transformers does; else only where HasGroupedKernel() says no.
at::Tensor Attend(const GroupedAttention& attention, bool repeats);

}  // namespace fsdprun::worker
