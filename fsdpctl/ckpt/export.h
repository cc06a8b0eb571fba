#pragma once

#include "fsdpctl/ckpt/ckpt_options.h"
#include "fsdpctl/ckpt/report.h"

namespace fsdprun::ckpt {

/// Writes the weights of a checkpoint as a Hugging Face folder, or as one .pt file. Streams.
/// Errors: std::runtime_error naming the file; then nothing was written, and nothing old replaced.
Report ExportCheckpoint(const CkptOptions& options);

}  // namespace fsdprun::ckpt
