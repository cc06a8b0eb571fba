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
/// Where a part is frozen. Products of adapters that backward drops again are not estimated.
constexpr double kFrozenTolerance = 0.2;
constexpr int64_t kWindows = 6;
constexpr int64_t kLength = 24;

struct MeasuredCase {
  std::string family;
  std::string kernels = "reference";
  std::string param = "float32";
  bool checkpoints = false;
  std::vector<std::string> more = {};
  /// Instead of kWindows and kLength, and of the family's vocabulary.
  int64_t windows = kWindows;
  int64_t vocabulary = 0;
  /// The loss of a forward is a part of that of its step.
  bool is_divided = false;

  ModelConfig Model() const {
    Json document = DocumentOf(family);
    if (vocabulary > 0) {
      document["vocab_size"] = vocabulary;
    }
    return ParseModelConfig(document, "config.json");
  }
  TrainConfig Config() const {
    std::vector<std::string> settings = {
        "model.kernels=" + kernels, "precision.param=" + param,
        std::string("train.activation_checkpointing=") + (checkpoints ? "true" : "false")};
    settings.insert(settings.end(), more.begin(), more.end());
    return EstimatedConfig(settings);
  }
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
    const bool is_gpt2 = std::string(family) == "gpt2";
    const std::string some =
        is_gpt2 ? R"(lora.targets=["c_attn"])" : R"(lora.targets=["q_proj", "v_proj"])";
    const std::string first = is_gpt2 ? R"(train.freeze=["*.wte.*", "*.wpe.*", "*.h.0.*"])"
                                      : R"(train.freeze=["*embed_tokens*", "*.layers.0.*"])";
    for (const bool checkpoints : {false, true}) {
      cases.push_back({family, "reference", "float32", checkpoints, {"lora.rank=4"}});
      cases.push_back({family, "fused", "float32", checkpoints, {"lora.rank=4", some}});
      cases.push_back({family, "reference", "float32", checkpoints, {first}});
    }
  }
  return cases;
}

/// More tokens than a chunk of the fused loss has, and more words than go with 8 Mi logits.
std::vector<MeasuredCase> LargeVocabularies() {
  std::vector<MeasuredCase> cases;
  for (const char* param : {"float32", "bfloat16"}) {
    for (const bool is_divided : {false, true}) {
      cases.push_back({.family = "llama",
                       .kernels = "fused",
                       .param = param,
                       .windows = 12,
                       .vocabulary = 40'000,
                       .is_divided = is_divided});
    }
  }
  return cases;
}

/// The most that a forward and backward of a rank alone have at a time, beside what is there
/// before.
int64_t MeasuredPeak(const MeasuredCase& wanted) {
  const TrainConfig config = wanted.Config();
  const ModelConfig model = wanted.Model();
  const auto count = std::make_shared<fsdp::testing::MemoryCount>();
  const fsdp::testing::CountingAllocator counting(count);
  World world = JoinRanks(config.parallel);
  ArrangeRanks(1, world);
  ShardedModel sharded = ShardModel(config, model, world);
  if (config.train.activation_checkpointing) {
    CheckpointActivations(sharded);
  }
  FillWeights(config, sharded);
  const at::Tensor tokens = at::arange(wanted.windows * kLength, at::kLong)
                                .remainder(model.vocab_size)
                                .view({wanted.windows, kLength});
  const at::Tensor targets = (tokens + 1).remainder(model.vocab_size);
  fsdp::AdamW optimizer(sharded.root, {});
  int64_t peak = 0;
  // The first ones make what stays.
  for (int step = 0; step < 3; ++step) {
    const int64_t before = count->live();
    count->begin_peak();
    const at::Tensor loss = LossOf(sharded.module, tokens, targets);
    (wanted.is_divided ? loss / 3 : loss).backward();
    peak = count->peak() - before;
    optimizer.zero_grad();
  }
  return peak;
}

void ExpectEstimated(const MeasuredCase& wanted) {
  const ModelConfig model = wanted.Model();
  ForwardShape shape;
  shape.windows = wanted.windows;
  shape.seq_len = kLength;
  shape.element_bytes = BytesOfDtype(wanted.param);
  shape.is_gpu = false;
  shape.has_fused_kernels = wanted.kernels == "fused";
  shape.checkpoints_blocks = wanted.checkpoints;
  const auto estimated =
      static_cast<double>(ActivationsOf(model, WeightsOf(wanted.Config(), model), shape).peak());
  const auto measured = static_cast<double>(MeasuredPeak(wanted));
  EXPECT_NEAR(estimated / measured, 1, wanted.more.empty() ? kTolerance : kFrozenTolerance)
      << wanted.family << ", " << wanted.kernels << ", " << wanted.param
      << (wanted.checkpoints ? ", checkpointed" : "") << (wanted.is_divided ? ", divided" : "")
      << (wanted.more.empty() ? "" : ", " + wanted.more.back()) << ": estimated " << estimated
      << ", measured " << measured;
}

TEST(MeasuredActivationsTest, TheEstimateIsWithinItsTolerance) {
  for (const MeasuredCase& wanted : MeasuredCases()) {
    ExpectEstimated(wanted);
  }
}

TEST(MeasuredActivationsTest, TheLossOfALargeVocabularyAlso) {
  for (const MeasuredCase& wanted : LargeVocabularies()) {
    ExpectEstimated(wanted);
  }
}

}  // namespace
}  // namespace fsdprun::worker
