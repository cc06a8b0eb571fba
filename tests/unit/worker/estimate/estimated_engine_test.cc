// What is estimated of weights is what the engine plans, and what modules have.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/planned_memory.h"
#include "tests/bench/instant_collectives.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/estimate/small_estimate.h"
#include "tests/unit/worker/estimate/stored_base.h"
#include "tests/unit/worker/models/family_documents.h"
#include "worker/estimate/base_dtype.h"
#include "worker/estimate/held_memory.h"
#include "worker/models/causal_lm.h"
#include "worker/run/sharded_model.h"
#include "worker/world/world.h"

namespace fsdprun::worker {
namespace {

TEST(EstimatedEngineTest, WeightsAreThoseOfTheModule) {
  for (const char* family : kFamilies) {
    const ModelConfig model = ParseModelConfig(DocumentOf(family), "config.json");
    const std::shared_ptr<CausalLm> module =
        MakeCausalLm(model, LayerFactory{.is_unmaterialized = true});
    const std::vector<EstimatedWeight> weights = WeightsOf(EstimatedConfig(), model);
    const auto parameters = module->named_parameters();
    ASSERT_EQ(parameters.size(), weights.size()) << family;
    int64_t numel = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(parameters[i].key(), weights[i].name) << family;
      EXPECT_EQ(parameters[i].value().sizes().vec(), weights[i].shape) << weights[i].name;
      numel += parameters[i].value().numel();
    }
    EXPECT_EQ(TotalOf(weights), numel) << family;
  }
}

/// Reduces onto gradients, as groups of a host do.
class InstantHost : public fsdp::bench::InstantCollectives {
 public:
  using InstantCollectives::InstantCollectives;
  bool has_reduce_scatter_onto(at::ScalarType dtype) const override { return dtype == at::kFloat; }
};

struct EngineCase {
  std::string backend;
  int64_t ranks = 1;
  std::string param = "float32";
  std::string reduce = "float32";
  std::string strategy = "full_shard";
  int64_t forwards = 1;
  /// Of adapters beside a base in a file of bfloat16; 0: none.
  int64_t rank = 0;
  std::string freeze = "[]";
};

std::vector<EngineCase> EngineCases() {
  std::vector<EngineCase> cases;
  for (const char* backend : {"shm", "gloo", "nccl"}) {
    for (const int64_t ranks : {1, 2, 4, 5}) {
      for (const char* param : {"float32", "bfloat16"}) {
        for (const char* strategy : {"full_shard", "shard_grad_op"}) {
          cases.push_back({backend, ranks, param, "float32", strategy, 1});
          cases.push_back({backend, ranks, param, param, strategy, 2});
          cases.push_back({backend, ranks, param, "float32", strategy, 1, /*rank=*/2});
          cases.push_back({.backend = backend,
                           .ranks = ranks,
                           .param = param,
                           .strategy = strategy,
                           .forwards = 2,
                           .freeze = R"(["*mlp*"])"});
        }
      }
    }
  }
  return cases;
}

fsdp::plan::MemoryPlan PlanOfEngine(const TrainConfig& config, const ModelConfig& model,
                                    const EngineCase& wanted) {
  const int64_t alignment = wanted.backend == "shm" && wanted.ranks > 1 ? 4096 : 0;
  World world;
  if (wanted.backend == "nccl") {
    world.group = std::make_shared<fsdp::bench::InstantCollectives>(wanted.ranks, alignment);
  } else {
    world.group = std::make_shared<InstantHost>(wanted.ranks, alignment);
  }
  ArrangeRanks(/*copies=*/1, world);
  const ShardedModel sharded = ShardModel(config, model, world);
  return fsdp::planned_memory(sharded.root, {.adds_gradients = wanted.forwards > 1});
}

TEST(EstimatedEngineTest, HeldMemoryIsWhatTheEnginePlans) {
  for (const char* family : {"llama", "gpt2"}) {
    const ModelConfig model = ParseModelConfig(DocumentOf(family), "config.json");
    const checkpoint::TemporaryDirectory directory;
    const std::string weights = directory / "weights.safetensors";
    WriteZeros(model, "BF16", weights);
    for (const EngineCase& wanted : EngineCases()) {
      const TrainConfig config = EstimatedConfig(
          {"parallel.backend=" + wanted.backend, "precision.param=" + wanted.param,
           "precision.reduce=" + wanted.reduce, "parallel.strategy=" + wanted.strategy,
           "model.weights=" + weights, "lora.rank=" + std::to_string(wanted.rank),
           "train.freeze=" + wanted.freeze,
           "train.grad_accumulation=" + std::to_string(wanted.forwards)});
      const std::vector<WeightGroup> groups =
          GroupsOf(WeightsOf(config, model, DtypeOfStoredBase(config, model)), config,
                   ArrangementOf(config.parallel, wanted.ranks), wanted.forwards);
      const HeldMemory held = HeldMemoryOf(groups, /*keeps_whole_gradients=*/false);
      const fsdp::plan::MemoryPlan plan = PlanOfEngine(config, model, wanted);
      const std::string name = std::string(family) + ", " + wanted.backend + ", " +
                               std::to_string(wanted.ranks) + ", " + wanted.param + ", " +
                               wanted.reduce + ", " + wanted.strategy + ", " +
                               std::to_string(wanted.forwards) +
                               (wanted.rank > 0 ? ", adapters" : "") + ", frozen " + wanted.freeze;
      EXPECT_EQ(held.shards, plan.shard_bytes) << name;
      EXPECT_EQ(held.gradients, plan.gradient_bytes) << name;
      EXPECT_EQ(held.gathered, plan.parameter_slot_bytes) << name;
      EXPECT_EQ(held.unreduced, plan.gradient_slot_bytes) << name;
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
