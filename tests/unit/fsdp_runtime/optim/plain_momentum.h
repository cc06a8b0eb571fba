#pragma once

// Momentum of whole parameters, as an optimizer without sharding has it.

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>

#include "tests/unit/fsdp_runtime/optim/grouped_model.h"

namespace fsdp::testing {

/// Trains the toy model on every rank's batches: `update` gets each parameter that has a gradient,
/// with its gradient and its momentum, undefined in the first step.
class PlainMomentum {
 public:
  using Update = std::function<void(const std::string& fqn, at::Tensor parameter,
                                    const at::Tensor& gradient, at::Tensor& momentum)>;
  PlainMomentum(int64_t ranks, Update update, const ToyConfig& config = {})
      : plain(config, ranks, {}), update_(std::move(update)) {}

  void train(int64_t step) {
    const Gradients gradients = gradients_in(plain, step);
    at::NoGradGuard no_grad;
    for (const auto& [fqn, gradient] : gradients) {
      update_(fqn, plain.parameter(fqn), gradient, momentum[fqn]);
    }
  }

  PlainTraining plain;
  std::map<std::string, at::Tensor> momentum;

 private:
  Update update_;
};

/// That the ranks' parts of the momenta are those of `plain`, and zeros where there is none.
inline void expect_momenta(const std::vector<LocalShard>& parts,
                           const std::map<std::string, at::Tensor>& whole) {
  for (const LocalShard& shard : parts) {
    const auto found = whole.find(shard.fqn);
    const bool is_there = found != whole.end() && found->second.defined();
    EXPECT_TRUE(is_there ? at::equal(shard.local, part_of(found->second, shard))
                         : shard.local.eq(0).all().item<bool>())
        << shard.fqn;
  }
}

}  // namespace fsdp::testing
