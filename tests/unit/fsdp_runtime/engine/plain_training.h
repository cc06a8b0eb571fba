#pragma once

#include <fsdp/optim.h>

#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {

/// Training without sharding: one model that sees every rank's batch, gradients averaged over ranks
/// in rank order, and torch.optim.AdamW written out.
class PlainTraining {
 public:
  PlainTraining(const ToyConfig& config, int64_t ranks, AdamWOptions options)
      : model(make_plain(config)),
        options_of([options](const std::string&) { return options; }),
        ranks_(ranks) {
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
      const std::optional<AdamWOptions> options = options_of(state.fqn);
      if (found == gradients.end() || !options) {
        continue;
      }
      const at::Tensor& gradient = found->second;
      ++state.step;
      const double correction1 = 1 - std::pow(options->beta1, state.step);
      const double correction2 = 1 - std::pow(options->beta2, state.step);
      state.param.mul_(1 - options->lr * options->weight_decay);
      state.exp_avg.lerp_(gradient, 1 - options->beta1);
      state.exp_avg_sq.mul_(options->beta2).addcmul_(gradient, gradient, 1 - options->beta2);
      const at::Tensor denominator =
          (state.exp_avg_sq.sqrt() / std::pow(correction2, 0.5)).add_(options->eps);
      state.param.addcdiv_(state.exp_avg, denominator, -options->lr / correction1);
    }
  }

  /// Those that are trained, each by its first name.
  std::vector<std::pair<std::string, at::Tensor>> unique_parameters() const {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (const State& state : states_) {
      named.emplace_back(state.fqn, state.param);
    }
    return named;
  }

  at::Tensor parameter(const std::string& fqn) const {
    return model->named_parameters()[fqn].detach();
  }

  Unit<ToyModel> model;
  /// Of a parameter; none: it is not optimized. At first those of the constructor, for all.
  std::function<std::optional<AdamWOptions>(const std::string& fqn)> options_of;

 private:
  struct State {
    std::string fqn;
    at::Tensor param, exp_avg, exp_avg_sq;
    int step = 0;
  };
  int64_t ranks_;
  std::vector<State> states_;
};

}  // namespace fsdp::testing
