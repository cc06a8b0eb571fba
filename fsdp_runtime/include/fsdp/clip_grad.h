#pragma once

/// @file
/// Clipping gradients: what torch.nn.utils has for it, on shards.

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>

namespace fsdp {

class FSDPModule;

/// @addtogroup train
/// @{

/// torch.nn.utils.clip_grad_norm_ for sharded gradients: computes the norm of all gradients under
/// `root` together and scales them by max_norm / (norm + 1e-6) if it exceeds max_norm. max_norm <=
/// 0: no scaling. Returns get_total_norm(), before scaling.
///
/// Collective: all ranks call it, between the end of a backward and the optimizer's step; behind
/// GradScaler::unscale_(), if the loss is scaled. CPU: blocks the host; CUDA: on the current
/// stream, without a wait of the host, unless `error_if_nonfinite`. A norm that is not finite
/// reaches every gradient, as in PyTorch. Errors: those of get_total_norm(), before a gradient is
/// written.
FSDP_API at::Tensor clip_grad_norm_(const FSDPModule& root, double max_norm, double norm_type = 2,
                                    bool error_if_nonfinite = false);

/// torch.nn.utils.get_total_norm for sharded gradients: the p-norm, p = `norm_type`, of all
/// gradients under `root`, as if they were one vector; infinity: the largest absolute value. 0-dim
/// float32 on the parameters' device, whatever the gradients' dtypes are, equal on all ranks of the
/// largest communicator, which must have all ranks of the others; 0 without gradients. Gradients in
/// float16 and bfloat16 are added up in float32, and what the ranks have in float64.
///
/// One all-reduce, over the ranks that divide the parameters. The shards of units on smaller
/// communicators, which only their own ranks share, count once for each set of ranks, but copies of
/// hybrid sharding once in all. Units on several communicators of one size need an all-reduce for
/// each, and the same ranks in all of them. Parameters that are not sharded do not count.
///
/// Collective, and blocks, as clip_grad_norm_(). Errors: TORCH_CHECK on an empty handle, without
/// parameters, on a norm_type that is not above 0, and on a norm that is infinite or NaN if
/// `error_if_nonfinite`, on all ranks alike; those of Work::wait().
FSDP_API at::Tensor get_total_norm(const FSDPModule& root, double norm_type = 2,
                                   bool error_if_nonfinite = false);

/// torch.nn.utils.clip_grads_with_norm_: scales the gradients under `root` by max_norm /
/// (total_norm + 1e-6) if that is less than 1. max_norm <= 0: no scaling. `total_norm`: 0-dim,
/// floating point, on the gradients' device, the same on all ranks, such as the norm of several
/// models together. Local. Errors: TORCH_CHECK on an empty handle and on another total_norm; those
/// of FSDPModule::sharded_gradients().
FSDP_API void clip_grads_with_norm_(const FSDPModule& root, double max_norm,
                                    const at::Tensor& total_norm);

/// torch.nn.utils.clip_grad_value_: limits each element of the gradients under `root` to
/// [-clip_value, clip_value]; a NaN stays. Local. Errors: TORCH_CHECK on an empty handle and on a
/// negative clip_value; those of FSDPModule::sharded_gradients().
FSDP_API void clip_grad_value_(const FSDPModule& root, double clip_value);

/// @}

}  // namespace fsdp
