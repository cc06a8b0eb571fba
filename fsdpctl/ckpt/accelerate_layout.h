#pragma once

#include "fsdpctl/ckpt/ckpt_options.h"
#include "fsdpctl/ckpt/conversion.h"

namespace fsdprun::ckpt {

/// The folders that accelerate's load_state() reads of a model and of its optimizer, which
/// save_state() writes with FSDP's SHARDED_STATE_DICT.
inline constexpr char kAccelerateModel[] = "pytorch_model_fsdp_0";
inline constexpr char kAccelerateOptimizer[] = "optimizer_0";

/// Weights and optimizer of a checkpoint of fsdp-train as those two folders. Errors: also if it has
/// no weights under "model.".
Conversion ConvertToAccelerate(const CkptOptions& options);

/// Those two folders of one folder, as weights and optimizer of fsdp-train; the optimizer's may be
/// missing. Errors: also if the model's is.
Conversion ConvertFromAccelerate(const CkptOptions& options);

}  // namespace fsdprun::ckpt
