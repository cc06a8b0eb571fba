#include "worker/run/run_optimizer.h"

#include <fsdp/muon.h>
#include <fsdp/optim.h>
#include <fsdp/sgd.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "worker/run/optimizer_groups.h"

namespace fsdprun::worker {
namespace {

class AdamWOptimizer : public RunOptimizer {
 public:
  AdamWOptimizer(const fsdp::FSDPModule& root, const std::vector<OptimizerGroup>& groups,
                 const TrainConfig::Optimizer& options)
      : rate_(groups.front().rate), optimizer_(root, GroupsOf(groups), DefaultsOf(options)) {}

  void SetRateFactor(double factor) override { optimizer_.set_lr(rate_ * factor); }
  void Step(const at::Tensor& found_inf) override { optimizer_.step({.found_inf = found_inf}); }
  void ZeroGrad() override { optimizer_.zero_grad(); }
  std::vector<OptimizerTensors> Tensors() const override {
    return {{"exp_avg", optimizer_.exp_avg()}, {"exp_avg_sq", optimizer_.exp_avg_sq()}};
  }
  std::vector<int64_t> ParameterSteps() const override { return optimizer_.parameter_steps(); }
  void SetParameterSteps(const std::vector<int64_t>& steps) override {
    optimizer_.set_parameter_steps(steps);
  }

 private:
  static std::vector<fsdp::AdamWParamGroup> GroupsOf(const std::vector<OptimizerGroup>& groups) {
    std::vector<fsdp::AdamWParamGroup> all;
    for (const OptimizerGroup& group : groups) {
      all.push_back({.params = group.params, .lr = group.rate, .weight_decay = group.weight_decay});
    }
    return all;
  }
  static fsdp::AdamWOptions DefaultsOf(const TrainConfig::Optimizer& options) {
    return {.lr = options.lr,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .eps = options.eps,
            .fused = options.fused};
  }

  const double rate_;
  fsdp::AdamW optimizer_;
};

/// What SGD and Muon have in common.
template <class Optimizer>
class MomentumOptimizer : public RunOptimizer {
 public:
  template <class Groups>
  MomentumOptimizer(const fsdp::FSDPModule& root, double rate, Groups groups)
      : rate_(rate), optimizer_(root, std::move(groups)) {}

  void SetRateFactor(double factor) override { optimizer_.set_lr(rate_ * factor); }
  void Step(const at::Tensor& found_inf) override { optimizer_.step(found_inf); }
  void ZeroGrad() override { optimizer_.zero_grad(); }
  std::vector<OptimizerTensors> Tensors() const override {
    return {{"momentum_buffer", optimizer_.momentum_buffer()}};
  }
  std::vector<int64_t> ParameterSteps() const override { return optimizer_.parameter_steps(); }
  void SetParameterSteps(const std::vector<int64_t>& steps) override {
    optimizer_.set_parameter_steps(steps);
  }

 private:
  const double rate_;
  Optimizer optimizer_;
};

std::unique_ptr<RunOptimizer> MakeSgd(const fsdp::FSDPModule& root,
                                      const std::vector<OptimizerGroup>& groups,
                                      const TrainConfig::Optimizer& options) {
  std::vector<fsdp::SGDParamGroup> all;
  for (const OptimizerGroup& group : groups) {
    all.push_back({group.params,
                   {.lr = group.rate,
                    .momentum = options.momentum,
                    .dampening = options.dampening,
                    .weight_decay = group.weight_decay,
                    .nesterov = options.nesterov}});
  }
  return std::make_unique<MomentumOptimizer<fsdp::SGD>>(root, groups.front().rate, std::move(all));
}

std::unique_ptr<RunOptimizer> MakeMuon(const fsdp::FSDPModule& root,
                                       const std::vector<OptimizerGroup>& groups,
                                       const TrainConfig::Optimizer& options) {
  std::vector<fsdp::MuonParamGroup> all;
  for (const OptimizerGroup& group : groups) {
    fsdp::MuonOptions muon;
    muon.lr = group.rate;
    muon.weight_decay = group.weight_decay;
    muon.momentum = options.momentum;
    muon.nesterov = options.nesterov;
    muon.ns_steps = options.ns_steps;
    muon.adjust_lr_fn = options.adjust_lr_fn == "original" ? fsdp::MuonRate::kOriginal
                                                           : fsdp::MuonRate::kMatchRmsAdamW;
    all.push_back({group.params, muon});
  }
  return std::make_unique<MomentumOptimizer<fsdp::Muon>>(root, groups.front().rate, std::move(all));
}

/// Several, each with parameters of its own.
class OptimizersTogether : public RunOptimizer {
 public:
  explicit OptimizersTogether(std::vector<std::unique_ptr<RunOptimizer>> optimizers)
      : optimizers_(std::move(optimizers)) {}

  void SetRateFactor(double factor) override {
    for (const auto& optimizer : optimizers_) {
      optimizer->SetRateFactor(factor);
    }
  }
  void Step(const at::Tensor& found_inf) override {
    for (const auto& optimizer : optimizers_) {
      optimizer->Step(found_inf);
    }
  }
  void ZeroGrad() override {
    for (const auto& optimizer : optimizers_) {
      optimizer->ZeroGrad();
    }
  }
  std::vector<OptimizerTensors> Tensors() const override {
    std::vector<OptimizerTensors> all;
    for (const auto& optimizer : optimizers_) {
      for (OptimizerTensors& tensors : optimizer->Tensors()) {
        all.push_back(std::move(tensors));
      }
    }
    return all;
  }
  std::vector<int64_t> ParameterSteps() const override {
    std::vector<int64_t> steps = optimizers_.front()->ParameterSteps();
    for (size_t i = 1; i < optimizers_.size(); ++i) {
      const std::vector<int64_t> others = optimizers_[i]->ParameterSteps();
      // 0 where it is another's.
      std::transform(steps.begin(), steps.end(), others.begin(), steps.begin(), std::plus<>());
    }
    return steps;
  }
  void SetParameterSteps(const std::vector<int64_t>& steps) override {
    for (const auto& optimizer : optimizers_) {
      optimizer->SetParameterSteps(steps);
    }
  }

 private:
  std::vector<std::unique_ptr<RunOptimizer>> optimizers_;
};

std::unique_ptr<RunOptimizer> MakeOfKind(OptimizerKind kind, const fsdp::FSDPModule& root,
                                         const std::vector<OptimizerGroup>& groups,
                                         const TrainConfig::Optimizer& options) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return MakeSgd(root, groups, options);
    case OptimizerKind::kMuon:
      return MakeMuon(root, groups, options);
    case OptimizerKind::kAdamW:
      break;
  }
  return std::make_unique<AdamWOptimizer>(root, groups, options);
}

}  // namespace

std::unique_ptr<RunOptimizer> MakeOptimizer(const ShardedModel& model,
                                            const TrainConfig::Optimizer& options) {
  const std::vector<OptimizerGroup> groups =
      GroupParameters(model.root.sharded_parameters(), options, model.frozen);
  std::vector<std::unique_ptr<RunOptimizer>> optimizers;
  for (const OptimizerKind kind :
       {OptimizerKind::kMuon, OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    std::vector<OptimizerGroup> of_kind;
    std::copy_if(groups.begin(), groups.end(), std::back_inserter(of_kind),
                 [kind](const OptimizerGroup& group) { return group.kind == kind; });
    if (!of_kind.empty()) {
      optimizers.push_back(MakeOfKind(kind, model.root, of_kind, options));
    }
  }
  if (optimizers.size() == 1) {
    return std::move(optimizers.front());
  }
  return std::make_unique<OptimizersTogether>(std::move(optimizers));
}

}  // namespace fsdprun::worker
