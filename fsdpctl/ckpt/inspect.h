#pragma once

#include <optional>
#include <string>

#include "formats/checkpoint/checkpoint_reader.h"
#include "fsdpctl/ckpt/report.h"

namespace fsdprun::ckpt {

/// What is in a checkpoint, or in a model's folder or file: tensors, objects, and of a checkpoint
/// of fsdp-train the training state, the configuration and the model. Executes nothing, reads no
/// elements. Errors: std::runtime_error naming the file.
Report InspectCheckpoint(const std::string& path);

/// The object `key` of a checkpoint; nullopt if there is none, or it is a Python object that is no
/// plain data, which is never unpickled. Errors: CheckpointError naming file and object if it is
/// damaged.
std::optional<Json> PlainObject(const checkpoint::OpenedCheckpoint& opened, const std::string& key);

}  // namespace fsdprun::ckpt
