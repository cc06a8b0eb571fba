#pragma once

#include <string>

#include "fsdpctl/ckpt/report.h"

namespace fsdprun::ckpt {

/// Reads everything of a checkpoint and compares it with its checksums: those of fsdprun.json, or
/// the CRC-32 of each archive in one that Python wrote. Safetensors have none: then the structure
/// alone is checked, and the report says so; of sharded ones also that all weights of the model are
/// there, or that this cannot be told without its configuration. The report names each damaged
/// item; only a path that is no checkpoint at all is an error (std::runtime_error).
Report VerifyCheckpoint(const std::string& path);

}  // namespace fsdprun::ckpt
