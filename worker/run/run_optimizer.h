#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/config/config.h"
#include "worker/run/sharded_model.h"

namespace fsdprun::worker {

/// What an optimizer keeps of parameters, under PyTorch's name of it: "exp_avg".
struct OptimizerTensors {
  std::string name;
  /// This rank's parts, each under the name of its parameter. Views: writing them sets the state.
  std::vector<fsdp::LocalShard> parts;
};

/// What updates the weights of a run, whatever optimizer.name says. Thread: one. All ranks make the
/// same calls.
class RunOptimizer {
 public:
  virtual ~RunOptimizer() = default;

  /// Learning rates become their peaks times `factor`, from the next step on.
  virtual void SetRateFactor(double factor) = 0;
  /// Updates the parameters with their gradients. `found_inf`: one element, float32, on the
  /// parameters' device, equal on all ranks; if it is not 0, nothing changes, and the host does not
  /// wait to learn it. Undefined: as 0.
  virtual void Step(const at::Tensor& found_inf) = 0;
  /// Drops the gradients.
  virtual void ZeroGrad() = 0;

  virtual std::vector<OptimizerTensors> Tensors() const = 0;
  /// Number of updates of each parameter, in the order of FSDPModule::sharded_parameters().
  virtual std::vector<int64_t> ParameterSteps() const = 0;
  /// For resuming, in the same order. Errors: c10::Error on a negative count and on another number
  /// of parameters.
  virtual void SetParameterSteps(const std::vector<int64_t>& steps) = 0;
};

/// On the shards of the model that are trained. Errors: ConfigError for a pattern of
/// optimizer.no_decay that matches no parameter, and for muon where no block has a matrix.
std::unique_ptr<RunOptimizer> MakeOptimizer(const ShardedModel& model,
                                            const TrainConfig::Optimizer& options);

}  // namespace fsdprun::worker
