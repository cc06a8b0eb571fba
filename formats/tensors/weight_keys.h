#pragma once

#include <map>
#include <string>

#include "formats/checkpoint/dcp_metadata.h"

namespace fsdprun {

/// The weights of a DCP checkpoint: their keys by their names in the model. What is under "model"
/// in the nested state dict, as its paths say, is known by its name there: of {"model": {...}}, or
/// of {"app": {"model": {...}}} if no other dict has such weights. Otherwise, as in a checkpoint of
/// a state dict alone or in torchtitan's layout, weights are all tensors that are not under
/// "optim", "optimizer", "train", "train_state", "lr_scheduler" or "dataloader", and the name is
/// the key. Where paths are not stored, "model." is taken off if all weights have it and some of
/// them twice
/// ("model.model.", "model.transformer.", "model.lm_head.").
std::map<std::string, std::string> WeightKeys(const checkpoint::DcpMetadata& metadata);

}  // namespace fsdprun
