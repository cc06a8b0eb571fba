#pragma once

#include <fsdp/fully_shard.h>

#include <set>
#include <string>
#include <vector>

#include "worker/config/config.h"
#include "worker/run/sharded_model.h"

namespace fsdprun::worker {

enum class OptimizerKind { kAdamW, kSgd, kMuon };

/// Parameters that are updated alike.
struct OptimizerGroup {
  OptimizerKind kind = OptimizerKind::kAdamW;
  std::vector<std::string> params;
  /// Peak learning rate.
  double rate = 0;
  double weight_decay = 0;
};

/// Those of optimizer.name, for all of `parameters` but `frozen`: one group with and, where the
/// patterns of optimizer.no_decay match, one without decay. With muon these are for AdamW, behind
/// two of the same for Muon, which has the matrices of the model's blocks (IsMatrixOfBlock). Empty
/// groups are left out. Pure. Errors: ConfigError for a pattern that matches no parameter, and for
/// muon without such a matrix.
std::vector<OptimizerGroup> GroupParameters(const std::vector<fsdp::LocalShard>& parameters,
                                            const TrainConfig::Optimizer& options,
                                            const std::set<std::string>& frozen = {});

/// Whether a parameter has two dimensions and is in a numbered module, as the blocks of a model
/// are: "model.layers.0.mlp.up_proj.weight". Pure.
bool IsMatrixOfBlock(const fsdp::Shard& parameter);

/// These groups with all their options in PyTorch's terms, with learning rates of `factor` times
/// their peaks.
std::string FormatParamGroups(const ShardedModel& model, const TrainConfig::Optimizer& options,
                              double factor);

/// One line for each option of the optimizer that differs between `stored` and `current` for
/// some parameter in both, learning rates apart, and for each of PyTorch's amsgrad, maximize and
/// decoupled_weight_decay that `stored` has otherwise than ours. Pure.
std::vector<std::string> DescribeChangedGroups(const std::string& stored,
                                               const std::string& current);

}  // namespace fsdprun::worker
