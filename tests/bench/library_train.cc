// Trains fsdp-train's model with libfsdp as a program of its own would, in the ways for which
// fsdp-train has no setting. bench_library.py compares it with tests/parity/fsdp2_train.py.
//
//   library_train CONFIG OUTPUT BACKEND STRATEGY [float16|offload]
//
// CONFIG: of fsdp-train, with one forward per step. OUTPUT: JSON lines of rank 0, one per step.
// BACKEND: that of a process group. STRATEGY:
//
//   full_shard  each decoder layer and the root are sharded over all ranks; fsdp::AdamW
//   no_shard    the same units with a whole copy on each rank
//   ddp         DistributedDataParallel, torch::optim::AdamW
//   ddp_fused   the same with the kernel of Python's torch.optim.AdamW(fused=True)
//
// Not for ddp: float16 computes in it, reduces in float32 and scales the loss; offload keeps
// parameters, gradients and what the optimizer has of them on the CPU.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fsdp/distributed_data_parallel.h>
#include <fsdp/fully_shard.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>
#include <fsdp/sharding_strategy.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/config/config.h"
#include "worker/data/token_stream.h"
#include "worker/models/causal_lm.h"
#include "worker/run/batches.h"
#include "worker/run/sharded_model.h"
#include "worker/weights/load_weights.h"
#include "worker/world/world.h"

namespace {

using fsdprun::ModelConfig;
using fsdprun::worker::CausalLm;
using fsdprun::worker::TrainConfig;
using fsdprun::worker::World;

struct Arguments {
  std::string config, output, backend, strategy;
  bool is_float16 = false;
  bool is_offloaded = false;
};

class Training {
 public:
  virtual ~Training() = default;
  /// tokens: int64 [batch, length] -> logits [batch, length, vocab_size].
  virtual at::Tensor forward(const at::Tensor& tokens) = 0;
  /// Backward, and the optimizer's step.
  virtual void update(const at::Tensor& loss) = 0;
};

class Sharded : public Training {
 public:
  Sharded(const TrainConfig& config, const ModelConfig& description, const World& world,
          fsdp::ShardingStrategy strategy, const Arguments& arguments)
      : scaler_({.enabled = arguments.is_float16}) {
    // Offloaded parameters are on the CPU from the start.
    const at::Device device = arguments.is_offloaded ? at::Device(at::kCPU) : world.device;
    fsdprun::worker::ShardedModel model;
    model.module = fsdp::Unit<CausalLm>(fsdprun::worker::MakeCausalLm(
        description, fsdprun::worker::LayerFactory{device, /*is_unmaterialized=*/true}));
    fsdp::FullyShardOptions blocks = fsdp::sharding_options(strategy, world.group);
    if (arguments.is_offloaded) {
      blocks.offload_policy = fsdp::CPUOffloadPolicy{};
    }
    if (arguments.is_float16) {
      blocks.mp_policy = {.param_dtype = at::kHalf, .reduce_dtype = at::kFloat};
    }
    fsdp::FullyShardOptions root = blocks;
    root.reshard_after_forward = false;
    if (arguments.is_float16) {
      root.mp_policy.output_dtype = at::kFloat;
    }
    model.root = model.module->Shard(blocks, root);
    fsdprun::worker::FillWeights(config, model);
    model_ = model.module;
    const TrainConfig::Optimizer& given = config.optimizer;
    optimizer_ = std::make_unique<fsdp::AdamW>(
        model.root,
        fsdp::AdamWOptions{given.lr, given.beta1, given.beta2, given.eps, given.weight_decay});
  }

  at::Tensor forward(const at::Tensor& tokens) override { return model_(tokens); }

  void update(const at::Tensor& loss) override {
    scaler_.scale(loss).backward();
    scaler_.step(*optimizer_);
    scaler_.update();
    optimizer_->zero_grad();
  }

 private:
  fsdp::Unit<CausalLm> model_;
  std::unique_ptr<fsdp::AdamW> optimizer_;
  fsdp::GradScaler scaler_;
};

/// What Python's torch.optim.AdamW(fused=True) does.
class FusedAdamW : public torch::optim::AdamW {
 public:
  FusedAdamW(const std::vector<at::Tensor>& parameters, const torch::optim::AdamWOptions& options)
      : AdamW(parameters, options), options_(options) {
    for (const at::Tensor& parameter : parameters) {
      exp_avgs_.push_back(at::zeros_like(parameter));
      exp_avg_sqs_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}, at::TensorOptions(at::kFloat).device(parameter.device())));
    }
  }

  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor>& parameters = param_groups()[0].params();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) {
      gradients.push_back(parameter.grad());
    }
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters, gradients, exp_avgs_, exp_avg_sqs_, at::TensorList(), steps_,
                      options_.lr(), std::get<0>(options_.betas()), std::get<1>(options_.betas()),
                      options_.weight_decay(), options_.eps(), /*amsgrad=*/false,
                      /*maximize=*/false);
    return {};
  }

 private:
  const torch::optim::AdamWOptions options_;
  std::vector<at::Tensor> exp_avgs_, exp_avg_sqs_, steps_;
};

/// Its parameters, whole, as fsdprun::worker::LoadWeights() takes them.
std::vector<fsdp::LocalShard> whole_parameters(const CausalLm& model) {
  std::vector<fsdp::LocalShard> slices;
  for (const auto& parameter : model.named_parameters()) {
    fsdp::LocalShard slice;
    slice.fqn = parameter.key();
    slice.global_shape = parameter.value().sizes().vec();
    slice.boxes = {{std::vector<int64_t>(slice.global_shape.size(), 0), slice.global_shape}};
    slice.local = parameter.value().detach().view({-1});
    slices.push_back(std::move(slice));
  }
  return slices;
}

/// With the weights that fsdp-train would give it.
std::shared_ptr<CausalLm> new_model(const TrainConfig::Model& given, const ModelConfig& description,
                                    at::Device device) {
  auto model = fsdprun::worker::MakeCausalLm(
      description, fsdprun::worker::LayerFactory{device, /*is_unmaterialized=*/false});
  if (given.weights != "none") {
    fsdprun::worker::LoadWeights(given.weights, whole_parameters(*model), description.names);
    return model;
  }
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(given.seed);
  for (const auto& parameter : model->named_parameters()) {
    model->InitParameter(parameter.key(), parameter.value(), generator);
  }
  return model;
}

class Replicated : public Training {
 public:
  Replicated(const TrainConfig& config, const ModelConfig& description, const World& world,
             bool is_fused)
      : ddp_(new_model(config.model, description, world.device), {.process_group = world.group}) {
    const TrainConfig::Optimizer& given = config.optimizer;
    const auto options = torch::optim::AdamWOptions(given.lr)
                             .betas({given.beta1, given.beta2})
                             .eps(given.eps)
                             .weight_decay(given.weight_decay);
    const std::vector<at::Tensor> parameters = ddp_->parameters();
    optimizer_ = is_fused ? std::make_unique<FusedAdamW>(parameters, options)
                          : std::make_unique<torch::optim::AdamW>(parameters, options);
  }

  at::Tensor forward(const at::Tensor& tokens) override { return ddp_(tokens); }

  void update(const at::Tensor& loss) override {
    loss.backward();
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  fsdp::DistributedDataParallel<CausalLm> ddp_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

std::unique_ptr<Training> new_training(const Arguments& arguments, const TrainConfig& config,
                                       const ModelConfig& description, const World& world) {
  static const std::map<std::string, fsdp::ShardingStrategy> strategies = {
      {"full_shard", fsdp::ShardingStrategy::kFullShard},
      {"no_shard", fsdp::ShardingStrategy::kNoShard}};
  if (const auto sharded = strategies.find(arguments.strategy); sharded != strategies.end()) {
    return std::make_unique<Sharded>(config, description, world, sharded->second, arguments);
  }
  const bool is_fused = arguments.strategy == "ddp_fused";
  TORCH_CHECK(is_fused || arguments.strategy == "ddp", "unknown strategy ", arguments.strategy);
  TORCH_CHECK(!arguments.is_float16 && !arguments.is_offloaded,
              "float16 and offload are for full_shard and no_shard");
  return std::make_unique<Replicated>(config, description, world, is_fused);
}

void train(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  TrainConfig config =
      fsdprun::worker::ParseConfig(fsdprun::worker::ResolveConfig(arguments.config, {}));
  TORCH_CHECK(config.train.grad_accumulation == 1, arguments.config,
              ": train.grad_accumulation is not 1");
  config.parallel.backend = arguments.backend;
  const World world = fsdprun::worker::JoinRanks(config.parallel);
  fsdprun::worker::SetThreads(world.size());
  const auto training =
      new_training(arguments, config, fsdprun::ReadModelConfig(config.model.config), world);
  fsdprun::worker::TrainBatches batches(
      std::make_shared<const fsdprun::worker::TrainData>(fsdprun::worker::Windows(
          std::make_shared<const fsdprun::worker::TokenStream>(config.data.train),
          config.data.seq_len)),
      {config.data.shuffle, config.data.seed, world.rank(), world.size(), world.device});
  fsdprun::worker::DataCursor cursor;
  std::ofstream output(world.rank() == 0 ? arguments.output : "/dev/null");
  for (int64_t step = 1; step <= config.train.steps; ++step) {
    const Clock::time_point start = Clock::now();
    const fsdprun::worker::Batch batch = batches.Next(config.train.micro_batch_size, cursor);
    const at::Tensor loss =
        fsdprun::worker::CausalLoss(training->forward(batch.inputs), batch.targets);
    training->update(loss);
    const at::Tensor mean = loss.detach().clone();
    world.group->all_reduce(mean, fsdp::ReduceOp::kAvg)->wait();
    const double of_ranks = mean.item<double>();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    output << fsdprun::Json({{"step", step}, {"loss", of_ranks}, {"step_seconds", seconds}}).dump()
           << std::endl;
  }
  TORCH_CHECK(output, "cannot write ", arguments.output);
  world.group->barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  const bool is_float16 = given.size() == 5 && given[4] == "float16";
  const bool is_offloaded = given.size() == 5 && given[4] == "offload";
  if (given.size() != 4 && !is_float16 && !is_offloaded) {
    std::cerr << "usage: library_train CONFIG OUTPUT BACKEND STRATEGY [float16|offload]\n";
    return 2;
  }
  try {
    train({given[0], given[1], given[2], given[3], is_float16, is_offloaded});
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
