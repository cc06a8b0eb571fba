#include "worker/run/sharded_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/checkpoint/exchange.h"
#include "worker/checkpoint/patience.h"
#include "worker/estimate/base_dtype.h"
#include "worker/models/lora.h"
#include "worker/run/frozen_base.h"
#include "worker/weights/load_weights.h"

namespace fsdprun::worker {
namespace {

at::ScalarType DtypeNamed(const std::string& name) {
  return name == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

/// An unset dtype avoids a no-op cast in the runtime.
std::optional<at::ScalarType> UnlessFloat32(const std::string& name) {
  return name == "float32" ? std::nullopt : std::optional(DtypeNamed(name));
}

fsdp::MixedPrecisionPolicy Policy(const TrainConfig::Precision& precision, bool is_root) {
  fsdp::MixedPrecisionPolicy policy;
  policy.param_dtype = UnlessFloat32(precision.param);
  const bool is_mixed = precision.param != "float32" || precision.reduce != "float32";
  if (is_mixed) {
    policy.reduce_dtype = DtypeNamed(precision.reduce);
  }
  if (is_root && precision.output != precision.param) {
    policy.output_dtype = DtypeNamed(precision.output);
  }
  return policy;
}

/// What `read`, of model.weights, returns on each rank. Collective. Errors: CheckpointError for
/// what may pass, ConfigError for what a disk cannot read (Note [Faults of reading]), on all ranks
/// alike.
std::vector<std::string> ReadOnAll(const checkpoint::Group& group,
                                   const std::function<std::string()>& read) {
  try {
    return checkpoint::ReadPatiently(group, [&] { return checkpoint::AttemptOnAll(group, read); });
  } catch (const checkpoint::CheckpointError& error) {
    if (error.error_number() != EIO) {
      throw;
    }
    throw ConfigError(std::string("model.weights: ") + error.what());
  }
}

/// Of the model's own parameters. Ranks whose files differ come to the same, and one that cannot
/// read them for now does not decide for all. Collective if there are adapters. Errors: as
/// ReadOnAll.
at::ScalarType DtypeOfModel(const TrainConfig& config, const ModelConfig& description,
                            const World& world) {
  if (!config.lora.is_on()) {
    return at::kFloat;
  }
  const auto look = [&]() -> std::string {
    return config.precision.param == "float32"
               ? config.precision.param  // whatever the files have
               : DtypeOfBase(config, DtypeOfStoredBase(config, description));
  };
  const checkpoint::Group group{world.group, world.device, nullptr, nullptr};
  const std::vector<std::string> dtypes = ReadOnAll(group, look);
  const bool is_one = std::all_of(dtypes.begin(), dtypes.end(), [&](const std::string& dtype) {
    return dtype == dtypes.front();
  });
  return is_one ? DtypeNamed(dtypes.front()) : at::kFloat;
}

void Freeze(const std::set<std::string>& names, CausalLm& model) {
  for (auto& parameter : model.named_parameters()) {
    if (names.contains(parameter.key())) {
      parameter.value().set_requires_grad(false);
    }
  }
}

void InitAdapters(uint64_t seed, const ShardedModel& model) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const fsdp::LocalShard& slice : TrainedParameters(model)) {
    const at::Tensor full = at::empty(slice.global_shape);
    InitAdapterWeight(slice.fqn, full, generator);
    fsdp::copy_part_of(full, slice);
  }
}

/// Those of model.weights.
std::vector<fsdp::LocalShard> LoadedParameters(const ShardedModel& model) {
  std::vector<fsdp::LocalShard> loaded = model.root.sharded_parameters();
  std::erase_if(loaded, [&model](const fsdp::LocalShard& parameter) {
    return model.has_adapters && !model.frozen.contains(parameter.fqn);
  });
  return loaded;
}

void DrawWeights(uint64_t seed, ShardedModel& model) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  model.root.init_parameters([&](const std::string& fqn, at::Tensor full) {
    if (model.has_adapters && !model.frozen.contains(fqn)) {
      full.zero_();  // drawn by themselves
      return;
    }
    // Always generated on the CPU, so that a seed gives the same model on every device.
    const at::Tensor drawn = full.is_cpu() ? full : at::empty_like(full, at::kCPU);
    model.module->InitParameter(fqn, drawn, generator);
    if (!full.is_cpu()) {
      full.copy_(drawn);
    }
  });
}

/// Of all ranks: what FillWeights has refused, or nothing. Errors: as ReadOnAll.
std::vector<std::string> RefusalsOfAll(const TrainConfig& config, const checkpoint::Group& group,
                                       ShardedModel& model) {
  const auto fill = [&]() -> std::string {
    try {
      FillWeights(config, model);
      return {};
    } catch (const ConfigError& error) {  // as a result, to keep its type
      return error.what();
    }
  };
  return ReadOnAll(group, fill);
}

}  // namespace

ShardedModel ShardModel(const TrainConfig& config, const ModelConfig& description,
                        const World& world) {
  fsdp::FullyShardOptions blocks;
  blocks.mesh = world.mesh;
  blocks.reshard_after_forward = config.parallel.strategy == "full_shard";
  blocks.mp_policy = Policy(config.precision, /*is_root=*/false);
  fsdp::FullyShardOptions root = blocks;
  root.reshard_after_forward = false;
  root.mp_policy = Policy(config.precision, /*is_root=*/true);

  const LayerFactory factory{
      .device = world.device,
      .is_unmaterialized = true,
      .kernels = config.model.has_fused_kernels ? Kernels::kFused : Kernels::kReference};
  LayerFactory own_factory = factory;
  own_factory.dtype = DtypeOfModel(config, description, world);
  ShardedModel model;
  model.module = fsdp::Unit<CausalLm>(MakeCausalLm(description, own_factory));
  model.frozen = FrozenWeights(config, description);
  model.has_adapters = config.lora.is_on();
  if (model.has_adapters) {
    AddAdapters(config.lora, factory, *model.module);
  } else {
    Freeze(model.frozen, *model.module);
  }
  model.root = model.module->Shard(blocks, root);
  return model;
}

void FillWeights(const TrainConfig& config, ShardedModel& model) {
  if (config.model.weights == "none") {
    DrawWeights(config.model.seed, model);
  } else {
    LoadWeights(config.model.weights, LoadedParameters(model), model.module->config().names);
  }
  if (model.has_adapters) {
    InitAdapters(config.model.seed, model);
  }
}

void FillWeightsOnAll(const TrainConfig& config, const checkpoint::Group& group,
                      ShardedModel& model) {
  const std::vector<std::string> refusals = RefusalsOfAll(config, group, model);
  const auto first = std::find_if(refusals.begin(), refusals.end(),
                                  [](const std::string& text) { return !text.empty(); });
  if (first == refusals.end()) {
    return;
  }
  const bool is_of_all = std::count(refusals.begin(), refusals.end(), *first) ==
                         static_cast<std::ptrdiff_t>(refusals.size());
  const std::string rank = std::to_string(first - refusals.begin());
  throw ConfigError((is_of_all ? "" : "rank " + rank + ": ") + *first);
}

bool HasFiniteWeights(const ShardedModel& model, const World& world) {
  const at::NoGradGuard no_grad;
  at::Tensor largest = at::zeros({1}, at::TensorOptions(at::kFloat).device(world.device));
  for (const fsdp::LocalShard& slice : TrainedParameters(model)) {
    if (slice.local.numel() > 0) {
      // Several times as fast as a norm, and keeps NaN as well.
      const auto [low, high] = at::aminmax(slice.local);
      largest = at::maximum(largest, at::maximum(high, -low).to(at::kFloat));
    }
  }
  const at::Tensor bad_count = at::isfinite(largest).logical_not().to(at::kFloat);
  world.group->all_reduce(bad_count, fsdp::ReduceOp::kSum, fsdp::Lane::kReduce)->wait();
  return bad_count.item<float>() == 0;
}

void CheckpointActivations(ShardedModel& model) { model.module->CheckpointActivations(); }

}  // namespace fsdprun::worker
