#pragma once

#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/config/config.h"

namespace fsdprun::worker {

/// AdamW on the shards of the model. Errors: ConfigError for a pattern of optimizer.no_decay that
/// matches no parameter.
std::unique_ptr<fsdp::AdamW> MakeOptimizer(const fsdp::FSDPModule& root,
                                           const TrainConfig::Optimizer& options);

/// One group of parameters with and, where the patterns of optimizer.no_decay match, one without
/// decay.
std::vector<fsdp::AdamWParamGroup> MakeParamGroups(const fsdp::FSDPModule& root,
                                                   const TrainConfig::Optimizer& options);

/// These groups with all their options in PyTorch's terms.
std::string FormatParamGroups(const fsdp::FSDPModule& root, const TrainConfig::Optimizer& options,
                              double lr);

/// One line for each of betas, eps and weight_decay that differs between `stored` and `current` for
/// some parameter in both, and for each of PyTorch's amsgrad, maximize and decoupled_weight_decay
/// that `stored` has otherwise than our AdamW. Pure.
std::vector<std::string> DescribeChangedGroups(const std::string& stored,
                                               const std::string& current);

}  // namespace fsdprun::worker
