#pragma once

#include <fsdp/optim.h>

#include <cmath>
#include <set>

#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {

/// Training without sharding: one model that sees every rank's batch, gradients averaged over ranks
/// in rank order, and torch.optim.AdamW written out.
class PlainTraining {
 public:
  PlainTraining(const ToyConfig& config, int64_t ranks, AdamWOptions options)
      : model(make_plain(config)), ranks_(ranks), options_(std::move(options)) {
    std::map<const void*, bool> seen;
    for (auto& param : model->named_parameters()) {
      if (!seen[param.value().unsafeGetTensorImpl()]) {
        seen[param.value().unsafeGetTensorImpl()] = true;
        if (param.value().requires_grad()) {
          states_.push_back({param.key(), param.value(), at::zeros_like(param.value()),
                             at::zeros_like(param.value()), 0});
        }
      }
    }
  }

  /// Gradients of `loss(rank)`, averaged; by parameter name. Where only some ranks use a parameter,
  /// the others count as zeros; parameters that no rank uses have none.
  std::map<std::string, at::Tensor> gradients(const std::function<at::Tensor(int64_t)>& loss) {
    std::map<std::string, at::Tensor> sum;
    std::set<std::string> used;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      model->zero_grad();
      loss(rank).backward();
      for (const State& state : states_) {
        if (state.param.grad().defined()) {
          used.insert(state.fqn);
        }
        const at::Tensor gradient =
            state.param.grad().defined() ? state.param.grad().clone() : at::zeros_like(state.param);
        sum[state.fqn] = rank == 0 ? gradient : sum[state.fqn] + gradient;
      }
    }
    std::erase_if(sum, [&](const auto& entry) { return !used.contains(entry.first); });
    for (auto& [fqn, gradient] : sum) {
      gradient.div_(ranks_);
    }
    return sum;
  }

  /// Leaves parameters without a gradient alone, as torch.optim does where it is None.
  void update(const std::map<std::string, at::Tensor>& gradients) {
    at::NoGradGuard no_grad;
    for (State& state : states_) {
      const auto found = gradients.find(state.fqn);
      if (found == gradients.end()) {
        continue;
      }
      const at::Tensor& gradient = found->second;
      ++state.step;
      const double correction1 = 1 - std::pow(options_.beta1, state.step);
      const double correction2 = 1 - std::pow(options_.beta2, state.step);
      state.param.mul_(1 - options_.lr * options_.weight_decay);
      state.exp_avg.lerp_(gradient, 1 - options_.beta1);
      state.exp_avg_sq.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
      const at::Tensor denominator =
          (state.exp_avg_sq.sqrt() / std::pow(correction2, 0.5)).add_(options_.eps);
      state.param.addcdiv_(state.exp_avg, denominator, -options_.lr / correction1);
    }
  }

  at::Tensor parameter(const std::string& fqn) const {
    return model->named_parameters()[fqn].detach();
  }

  Unit<ToyModel> model;

 private:
  struct State {
    std::string fqn;
    at::Tensor param, exp_avg, exp_avg_sq;
    int step = 0;
  };
  int64_t ranks_;
  AdamWOptions options_;
  std::vector<State> states_;
};

}  // namespace fsdp::testing
