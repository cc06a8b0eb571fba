// What is estimated of activations is what a forward and backward allocate on a CPU.

#include <ATen/ATen.h>
#include <fsdp/optim.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/counted_memory.h"
#include "tests/unit/worker/estimate/small_estimate.h"
#include "tests/unit/worker/models/family_documents.h"
#include "worker/estimate/activations.h"
#include "worker/estimate/estimated_weights.h"
#include "worker/models/causal_lm.h"
#include "worker/run/sharded_model.h"
#include "worker/world/world.h"

namespace fsdprun::worker {
namespace {

/// docs/TRAINING.md says so.
constexpr double kTolerance = 0.1;
constexpr int64_t kWindows = 6;
constexpr int64_t kLength = 24;

struct MeasuredCase {
  std::string family;
  std::string kernels = "reference";
  std::string param = "float32";
  bool checkpoints = false;
};

std::vector<MeasuredCase> MeasuredCases() {
  std::vector<MeasuredCase> cases;
  for (const char* family : kFamilies) {
    for (const char* kernels : {"reference", "fused"}) {
      for (const bool checkpoints : {false, true}) {
        cases.push_back({family, kernels, "float32", checkpoints});
      }
    }
    cases.push_back({family, "reference", "bfloat16", false});
  }
  return cases;
}

/// The most that a forward and backward of a rank alone have at a time, beside what is there
/// before.
int64_t MeasuredPeak(const TrainConfig& config, const ModelConfig& model) {
  const auto count = std::make_shared<fsdp::testing::MemoryCount>();
  const fsdp::testing::CountingAllocator counting(count);
  World world = JoinRanks(config.parallel);
  ArrangeRanks(1, world);
  ShardedModel sharded = ShardModel(config, model, world);
  if (config.train.activation_checkpointing) {
    CheckpointActivations(sharded);
  }
  FillWeights(config, sharded);
  const at::Tensor tokens = at::arange(kWindows * kLength, at::kLong)
                                .remainder(model.vocab_size)
                                .view({kWindows, kLength});
  const at::Tensor targets = (tokens + 1).remainder(model.vocab_size);
  fsdp::AdamW optimizer(sharded.root, {});
  int64_t peak = 0;
  // The first ones make what stays.
  for (int step = 0; step < 3; ++step) {
    const int64_t before = count->live();
    count->begin_peak();
    LossOf(sharded.module, tokens, targets).backward();
    peak = count->peak() - before;
    optimizer.zero_grad();
  }
  return peak;
}

TEST(MeasuredActivationsTest, TheEstimateIsWithinItsTolerance) {
  for (const MeasuredCase& wanted : MeasuredCases()) {
    const ModelConfig model = ParseModelConfig(DocumentOf(wanted.family), "config.json");
    const TrainConfig config = EstimatedConfig(
        {"model.kernels=" + wanted.kernels, "precision.param=" + wanted.param,
         std::string("train.activation_checkpointing=") + (wanted.checkpoints ? "true" : "false")});
    ForwardShape shape;
    shape.windows = kWindows;
    shape.seq_len = kLength;
    shape.element_bytes = BytesOfDtype(wanted.param);
    shape.is_gpu = false;
    shape.has_fused_kernels = wanted.kernels == "fused";
    shape.checkpoints_blocks = wanted.checkpoints;
    const auto estimated = static_cast<double>(ActivationsOf(model, shape).peak());
    const auto measured = static_cast<double>(MeasuredPeak(config, model));
    EXPECT_NEAR(estimated / measured, 1, kTolerance)
        << wanted.family << ", " << wanted.kernels << ", " << wanted.param
        << (wanted.checkpoints ? ", checkpointed" : "") << ": estimated " << estimated
        << ", measured " << measured;
  }
}

}  // namespace
}  // namespace fsdprun::worker
