#include "tests/gpu/training.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fsdp/clip_grad.h>
#include <fsdp/counters.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "tests/gpu/mirrored_collectives.h"
#include "worker/models/causal_lm.h"

namespace fsdp::gpu {
namespace {

using fsdprun::worker::CausalLm;

constexpr double kWeightDecay = 0.1;

std::shared_ptr<Collectives> make_group(const TrainCase& given) {
  ProcessGroupOptions options;
  options.backend = given.device.is_cuda() ? "nccl" : "shm";
  options.device_type = given.device.type();
  options.timeout = std::chrono::minutes(1);
  options.communicates_alone = given.communicates || given.group == "mirrored";
  std::shared_ptr<Collectives> group = init_process_group(options);
  return given.group == "mirrored" ? std::make_shared<MirroredCollectives>(group) : group;
}

fsdprun::worker::LayerFactory factory_of(const TrainCase& given, bool is_unmaterialized) {
  return {.device = given.device, .is_unmaterialized = is_unmaterialized, .kernels = given.kernels};
}

void fill(const TrainCase& given, int64_t index, const std::string& fqn, at::Tensor full) {
  if (given.init == "formula") {
    fill_by_formula(index, fqn, std::move(full));
  } else if (full.dim() == 1) {
    full.fill_(1);
  } else {
    full.normal_(0, 0.02);
  }
}

/// The inputs and targets of `tokens`.
at::Tensor loss_of(const Unit<CausalLm>& model, const at::Tensor& tokens) {
  const int64_t length = tokens.size(1) - 1;
  return fsdprun::worker::LossOf(model, tokens.narrow(1, 0, length).contiguous(),
                                 tokens.narrow(1, 1, length).contiguous());
}

at::Tensor backward_of(const Unit<CausalLm>& model, const TrainCase& given,
                       const at::Tensor& tokens) {
  const at::Tensor loss = loss_of(model, tokens);
  const auto rounds = static_cast<double>(given.micro_batches);
  (given.micro_batches > 1 ? loss / rounds : loss).backward();
  return loss.detach();
}

class Sharded : public Training {
 public:
  explicit Sharded(const TrainCase& given)
      : given_(given), group_(std::make_shared<RecordingCollectives>(make_group(given))) {
    FullyShardOptions blocks;
    blocks.mesh = init_device_mesh(given.device.type(), {group_->size()}, {"dp_shard"}, group_);
    if (given.is_bfloat16) {
      blocks.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    }
    FullyShardOptions root = blocks;
    root.reshard_after_forward = false;
    if (given.is_bfloat16) {
      root.mp_policy.output_dtype = at::kFloat;
    }
    model_ = Unit<CausalLm>(
        fsdprun::worker::MakeCausalLm(given.model, factory_of(given, /*is_unmaterialized=*/true)));
    root_ = model_->Shard(blocks, root);
    int64_t index = 0;
    root_.init_parameters(
        [&](const std::string& fqn, const at::Tensor& full) { fill(given_, index++, fqn, full); });
    if (given.recomputes_blocks) {
      model_->CheckpointActivations();
    }
    if (given.optimizer == "adamw") {
      adamw_.emplace(root_, AdamWOptions{.lr = given.lr, .weight_decay = kWeightDecay});
    } else {
      sgd_.emplace(root_.parameters(), torch::optim::SGDOptions(given.lr).momentum(0.9));
    }
  }

  at::Tensor backward(const at::Tensor& tokens, bool is_last) override {
    root_.set_requires_gradient_sync(is_last);
    return backward_of(model_, given_, tokens);
  }

  at::Tensor update() override {
    at::Tensor norm;
    if (given_.max_grad_norm > 0) {
      norm = clip_grad_norm_(root_, given_.max_grad_norm);
    }
    if (adamw_) {
      adamw_->step();
      adamw_->zero_grad();
    } else {
      decay_by_hand();
      sgd_->step();
      sgd_->zero_grad();
    }
    return norm;
  }

  void set_lr(double lr) override {
    TORCH_CHECK(adamw_, "lr_factor: adamw expected");
    adamw_->set_lr(lr);
  }

  void write(const std::string& folder) override {
    const auto [model, optimizer] =
        get_state_dict(root_, optimizer_ref(), {.full_state_dict = true, .cpu_offload = true});
    save(model, folder + "/model.pt");
    save(optimizer, folder + "/optimizer.pt");
  }

  void read(const std::string& folder) override {
    set_state_dict(root_, optimizer_ref(), load(folder + "/model.pt"),
                   load_optimizer(folder + "/optimizer.pt"), {.full_state_dict = true});
  }

  fsdprun::Json what() override {
    fsdprun::Json counts = fsdprun::Json::object();
    for (const CollectiveRecord& record : group_->records()) {
      const std::string key = record.operation + " " + record.dtype;
      counts[key] = counts.value(key, int64_t{0}) + 1;
    }
    group_->clear();
    const RuntimeCounters counters = runtime_counters(root_);
    return {{"group", group_->name()},
            {"collectives", counts},
            {"slot_allocations", counters.slot_allocations},
            {"slot_bytes", counters.slot_bytes}};
  }

 private:
  /// The sharded parameters and their gradients as tensors like any others.
  void decay_by_hand() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : root_.parameters()) {
      parameter.mutable_grad().add_(parameter, kWeightDecay);
    }
  }

  OptimizerRef optimizer_ref() {
    if (adamw_) {
      return *adamw_;
    }
    return static_cast<torch::optim::Optimizer&>(*sgd_);
  }

  const TrainCase& given_;
  const std::shared_ptr<RecordingCollectives> group_;
  Unit<CausalLm> model_;
  FSDPModule root_;
  std::optional<AdamW> adamw_;
  std::optional<torch::optim::SGD> sgd_;
};

/// Without FSDP: what the model itself costs. All in the dtype in which it computes, moments
/// included, updated by the kernel that fsdp::AdamW has on a GPU.
class Bare : public Training {
 public:
  explicit Bare(const TrainCase& given) : given_(given) {
    TORCH_CHECK(given.optimizer == "adamw" && given.max_grad_norm == 0 && given.read_from.empty() &&
                    given.write_to.empty(),
                "group none: adamw without clipping and files expected");
    if (given.device.is_cuda()) {
      TORCH_CHECK(cuda_device_count() > 0, "no GPU can be used");
    }
    fsdprun::worker::LayerFactory factory = factory_of(given, /*is_unmaterialized=*/false);
    factory.dtype = given.is_bfloat16 ? at::kBFloat16 : at::kFloat;
    model_ = Unit<CausalLm>(fsdprun::worker::MakeCausalLm(given.model, factory));
    if (given.recomputes_blocks) {
      model_->CheckpointActivations();
    }
    const at::NoGradGuard no_grad;
    int64_t index = 0;
    for (const auto& parameter : model_->named_parameters()) {
      fill(given, index++, parameter.key(), parameter.value());
      parameters_.push_back(parameter.value());
      exp_avgs_.push_back(at::zeros_like(parameter.value()));
      exp_avg_sqs_.push_back(at::zeros_like(parameter.value()));
      steps_.push_back(at::zeros({}, at::TensorOptions(at::kFloat).device(given.device)));
    }
  }

  at::Tensor backward(const at::Tensor& tokens, bool) override {
    return backward_of(model_, given_, tokens);
  }

  at::Tensor update() override {
    const at::NoGradGuard no_grad;
    const AdamWOptions options;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) {
      gradients.push_back(parameter.grad());
    }
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients, exp_avgs_, exp_avg_sqs_, at::TensorList(), steps_,
                      given_.lr, options.beta1, options.beta2, kWeightDecay, options.eps,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (const at::Tensor& parameter : parameters_) {
      parameter.mutable_grad().reset();
    }
    return {};
  }

  void set_lr(double) override { TORCH_CHECK(false, "lr_factor: expected 1 with group none"); }
  void write(const std::string&) override {}
  void read(const std::string&) override {}
  fsdprun::Json what() override { return {{"group", "none"}}; }

 private:
  const TrainCase& given_;
  Unit<CausalLm> model_;
  std::vector<at::Tensor> parameters_, exp_avgs_, exp_avg_sqs_, steps_;
};

}  // namespace

void fill_by_formula(int64_t index, const std::string& fqn, at::Tensor full) {
  const at::Tensor number =
      at::arange(full.numel(), at::kDouble) + 100.0 * static_cast<double>(index);
  const bool is_norm = fqn.ends_with("norm.weight");
  const at::Tensor values =
      (number * 12.9898).sin() * (is_norm ? 0.1 : 0.05) + (is_norm ? 1.0 : 0.0);
  full.copy_(values.to(at::kFloat).view(full.sizes()));
}

std::unique_ptr<Training> make_training(const TrainCase& given) {
  if (given.group == "none") {
    return std::make_unique<Bare>(given);
  }
  return std::make_unique<Sharded>(given);
}

}  // namespace fsdp::gpu
