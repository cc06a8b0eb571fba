#pragma once

#include "fsdpctl/ckpt/ckpt_options.h"
#include "fsdpctl/ckpt/conversion.h"
#include "fsdpctl/ckpt/titan_names.h"

namespace fsdprun::ckpt {

/// The weights of a checkpoint, or of a Hugging Face model, under torchtitan's keys, which are at
/// the top level, and in its order of rows. Errors: also for a parameter that torchtitan's model
/// does not have.
Conversion ConvertToTitan(const CkptOptions& options, TitanStyle style);

/// Weights and moments of a checkpoint of torchtitan under the keys of fsdp-train. Errors: as
/// above; also for a head that differs from the embedding though the configuration ties them.
Conversion ConvertFromTitan(const CkptOptions& options);

}  // namespace fsdprun::ckpt
