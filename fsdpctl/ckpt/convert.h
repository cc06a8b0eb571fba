#pragma once

#include "fsdpctl/ckpt/ckpt_options.h"
#include "fsdpctl/ckpt/report.h"

namespace fsdprun::ckpt {

// Both write a DCP checkpoint, streamed. Errors: std::runtime_error naming the file; then nothing
// was written, and nothing old replaced.

/// Of a Hugging Face model: its weights under "model." and the names that fsdp-train knows, its
/// config.json and generation_config.json, and the folder that they are from.
Report ImportModel(const CkptOptions& options);

/// Of a checkpoint: all of it, with keys renamed by --map. Python objects are copied byte for byte,
/// never unpickled.
Report ConvertCheckpoint(const CkptOptions& options);

}  // namespace fsdprun::ckpt
