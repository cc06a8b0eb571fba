#include "worker/estimate/activations.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker/estimate/small_estimate.h"

namespace fsdprun::worker {
namespace {

// 32 tokens in windows of 16.
constexpr int64_t kTokens = 32;

ForwardShape Shape() {
  ForwardShape shape;
  shape.windows = 2;
  shape.seq_len = 16;
  shape.is_gpu = false;
  return shape;
}

/// Of a run with these settings.
Activations Of(const ModelConfig& model, const ForwardShape& shape,
               const std::vector<std::string>& settings = {}) {
  return ActivationsOf(model, WeightsOf(EstimatedConfig(settings), model), shape);
}

// Two norms with a cast input, the normalised and the output, and a scale for each row; queries,
// keys, values and output, and a sum for each head; four tensors of the MLP.
constexpr int64_t kNormBytes = kTokens * (64 * 12 + 4);
constexpr int64_t kBlockBytes =
    2 * kNormBytes + kTokens * (4 * 64 * 4 + 2 * 4) + kTokens * 4 * 128 * 4;
constexpr int64_t kLossBytes = 12 * kTokens * 256;
constexpr int64_t kEmbeddingBytes = 256 * 64 * 4;
constexpr int64_t kHiddenBytes = kTokens * 64 * 4;

TEST(ActivationsTest, BlocksKeepWhatTheirOperationsSave) {
  const Activations activations = Of(EstimatedModel(), Shape());
  EXPECT_EQ(activations.blocks, 3 * kBlockBytes);
  EXPECT_EQ(activations.recomputed, 0);
  EXPECT_EQ(activations.at_loss, kNormBytes + kLossBytes);
  EXPECT_EQ(activations.in_block, 2 * kTokens * 128 * 4 + 2 * kHiddenBytes);
  EXPECT_EQ(activations.at_end, kEmbeddingBytes + kHiddenBytes);
  EXPECT_EQ(activations.tables, 2 * 16 * 32 * 4);
  EXPECT_EQ(activations.peak(), activations.tables + 3 * kBlockBytes + kNormBytes + kLossBytes);
}

TEST(ActivationsTest, CheckpointedBlocksKeepTheirInput) {
  ForwardShape shape = Shape();
  shape.checkpoints_blocks = true;
  const Activations activations = Of(EstimatedModel(), shape);
  EXPECT_EQ(activations.blocks, 3 * kHiddenBytes);
  EXPECT_EQ(activations.recomputed, kBlockBytes - kHiddenBytes);  // the input is there already
  EXPECT_EQ(activations.peak(),
            activations.tables + 3 * kHiddenBytes + activations.recomputed + activations.in_block);
}

TEST(ActivationsTest, HalfPrecisionKeepsNormsInFull) {
  ForwardShape shape = Shape();
  shape.element_bytes = 2;
  const Activations activations = Of(EstimatedModel(), shape);
  const int64_t norm = kTokens * (64 * (4 + 2 + 2) + 4);
  EXPECT_EQ(activations.blocks,
            3 * (2 * norm + kTokens * (4 * 64 * 2 + 2 * 4) + kTokens * 4 * 128 * 2));
  EXPECT_EQ(activations.at_loss, norm + kLossBytes);
}

TEST(ActivationsTest, KeysAreRepeatedForTheQueriesThatShareThem) {
  const ModelConfig shared = EstimatedModel(R"(, "num_key_value_heads": 1)");
  EXPECT_EQ(Of(shared, Shape()).blocks, 3 * kBlockBytes);
  ForwardShape fused = Shape();
  fused.has_fused_kernels = true;
  // No normalised input, no copies of keys and values, nothing of silu.
  EXPECT_EQ(Of(shared, fused).blocks,
            3 * (2 * kTokens * (64 * 8 + 4) + kTokens * ((2 * 64 + 2 * 32) * 4 + 2 * 4) +
                 kTokens * 3 * 128 * 4));
}

TEST(ActivationsTest, FusedLossHasGradientsInsteadOfLogits) {
  ForwardShape shape = Shape();
  shape.has_fused_kernels = true;
  const int64_t norm = kTokens * (64 * 8 + 4);
  EXPECT_EQ(Of(EstimatedModel(), shape).at_loss,
            norm + kHiddenBytes + kEmbeddingBytes + kTokens * 256 * 4);
}

ModelConfig ModelOf(int64_t vocabulary, int64_t intermediate) {
  const Json document = {{"model_type", "llama"},
                         {"vocab_size", vocabulary},
                         {"hidden_size", 64},
                         {"intermediate_size", intermediate},
                         {"num_hidden_layers", 3},
                         {"num_attention_heads", 2},
                         {"max_position_embeddings", 1024}};
  return ParseModelConfig(document, "model");
}

/// At the loss of 4096 tokens: what this vocabulary takes more than one of 256.
int64_t LossOfWords(int64_t vocabulary, bool is_gpu, int64_t element_bytes) {
  ForwardShape shape;
  shape.windows = 4;
  shape.seq_len = 1024;
  shape.is_gpu = is_gpu;
  shape.has_fused_kernels = true;
  shape.element_bytes = element_bytes;
  return Of(ModelOf(vocabulary, 128), shape).at_loss - Of(ModelOf(256, 128), shape).at_loss;
}

TEST(ActivationsTest, FusedLossHasTheChunksThatItComputes) {
  constexpr int64_t kMany = 4096, kWords = 128'000;
  // Beside what a vocabulary of 256 takes, all 4096 tokens of it at a time.
  const auto small = [](int64_t head_bytes, int64_t logit_bytes) {
    return 256 * (64 * head_bytes + kMany * logit_bytes);
  };
  EXPECT_EQ(LossOfWords(kWords, /*is_gpu=*/true, 4), kWords * (64 * 4 + 2048 * 4) - small(4, 4));
  EXPECT_EQ(LossOfWords(kWords, /*is_gpu=*/false, 4), kWords * (64 * 4 + 256 * 4) - small(4, 4));
  // Several chunks add up the head's gradient in float32, one has it in bfloat16 alone; CPUs have
  // the logits in both.
  EXPECT_EQ(LossOfWords(kWords, /*is_gpu=*/true, 2),
            kWords * (64 * (4 + 2) + 2048 * 2) - small(2, 2));
  EXPECT_EQ(LossOfWords(kWords, /*is_gpu=*/false, 2),
            kWords * (64 * (4 + 2) + 256 * (4 + 2)) - small(2, 4 + 2));
}

TEST(ActivationsTest, FusedSwigluKeepsNothingOfSiluButInHalfPrecisionOnCpus) {
  ForwardShape shape = Shape();
  for (const bool is_gpu : {false, true}) {
    for (const int64_t element_bytes : {2, 4}) {
      shape.is_gpu = is_gpu;
      shape.element_bytes = element_bytes;
      const auto intermediates = [&](bool is_fused) {
        shape.has_fused_kernels = is_fused;
        return (Of(ModelOf(256, 1152), shape).blocks - Of(ModelOf(256, 128), shape).blocks) /
               (3 * kTokens * 1024 * element_bytes);
      };
      EXPECT_EQ(intermediates(/*is_fused=*/false), 4);
      EXPECT_EQ(intermediates(/*is_fused=*/true), !is_gpu && element_bytes == 2 ? 4 : 3);
    }
  }
}

TEST(ActivationsTest, FusedAttentionOfGpusRepeatsKeysInFloat32) {
  const ModelConfig shared = EstimatedModel(R"(, "num_key_value_heads": 1)");
  ForwardShape shape = Shape();
  shape.is_gpu = shape.has_fused_kernels = true;
  const ModelConfig own = EstimatedModel();
  EXPECT_EQ(Of(shared, shape).blocks, Of(own, shape).blocks);
  shape.element_bytes = 2;
  EXPECT_EQ(Of(own, shape).blocks - Of(shared, shape).blocks, 3 * kTokens * 2 * 32 * 2);
}

TEST(ActivationsTest, ATiedHeadsGradientWaitsForThatOfTheEmbedding) {
  const Activations tied = Of(EstimatedModel(R"(, "tie_word_embeddings": true)"), Shape());
  const Activations own = Of(EstimatedModel(), Shape());
  EXPECT_EQ(tied.in_block, own.in_block + kEmbeddingBytes);
  EXPECT_EQ(tied.at_end, own.at_end + 2 * kEmbeddingBytes);
}

TEST(ActivationsTest, AGpuHasTheGradientsOfAUnitBesides) {
  ForwardShape shape = Shape();
  shape.is_gpu = true;
  const Activations activations = Of(EstimatedModel(), shape);
  const Activations on_cpu = Of(EstimatedModel(), Shape());
  EXPECT_EQ(activations.in_block,
            on_cpu.in_block + 4 * (4 * 4096 + 3 * 8192 + 128) + kEmbeddingBytes);
  EXPECT_EQ(activations.at_loss, kNormBytes + kTokens * 256 * 4 + kHiddenBytes + kEmbeddingBytes);
}

TEST(ActivationsTest, MasksOfWindowsAreSquares) {
  const ModelConfig model = ParseModelConfig(
      ParseStrictJson(R"({"model_type": "mistral", "vocab_size": 256, "hidden_size": 64,
                          "intermediate_size": 128, "num_hidden_layers": 3,
                          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
                          "max_position_embeddings": 64, "sliding_window": 8})",
                      "model"),
      "model");
  const Activations activations = Of(model, Shape());
  EXPECT_EQ(activations.blocks, 3 * (kBlockBytes + 16 * 16 * 4));
  EXPECT_EQ(activations.tables, 2 * 16 * 32 * 4 + 16 * 16);
}

TEST(ActivationsTest, Gpt2IsCountedByItsOwnOperations) {
  const ModelConfig model = ParseModelConfig(
      ParseStrictJson(R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 3,
                          "n_head": 2, "n_positions": 16})",
                      "model"),
      "model");
  const Activations activations = Of(model, Shape());
  const int64_t norm = kTokens * (64 * 8 + 8);
  EXPECT_EQ(activations.blocks,
            3 * (2 * norm + 4 * kHiddenBytes + kTokens * 2 * 4 + 2 * kTokens * 256 * 4));
  EXPECT_EQ(activations.at_end, 3 * kEmbeddingBytes + kHiddenBytes);
}

// What the first norm keeps of its input, which has no gradient behind a frozen embedding.
constexpr int64_t kNormInputBytes = kTokens * (64 * 4 + 4);

TEST(ActivationsTest, UnderAdaptersNoWeightHasAGradient) {
  ForwardShape shape = Shape();
  shape.is_gpu = true;
  const Activations all = Of(EstimatedModel(), shape, {"lora.rank=2"});
  // No normalised inputs of norms, and seven adapters.
  EXPECT_EQ(all.blocks,
            3 * (kBlockBytes - 2 * kHiddenBytes + kTokens * 7 * 2 * 4) - kNormInputBytes);
  EXPECT_EQ(all.at_loss, kNormBytes - 2 * kHiddenBytes + kLossBytes);
  EXPECT_EQ(all.at_end, kHiddenBytes);
  // Nor inputs of the MLP's layers.
  const Activations two =
      Of(EstimatedModel(), shape, {"lora.rank=2", R"(lora.targets=["q_proj", "v_proj"])"});
  EXPECT_EQ(two.blocks,
            3 * (kBlockBytes - 3 * kHiddenBytes - kTokens * 128 * 4 + kTokens * 2 * 2 * 4) -
                kNormInputBytes);
  // A first block that is checkpointed has an input with a gradient.
  shape.checkpoints_blocks = true;
  const Activations checkpointed = Of(EstimatedModel(), shape, {"lora.rank=2"});
  EXPECT_EQ(checkpointed.blocks, 3 * kHiddenBytes);
  EXPECT_EQ(checkpointed.recomputed,
            kBlockBytes - 2 * kHiddenBytes + kTokens * 7 * 2 * 4 - kHiddenBytes);
}

TEST(ActivationsTest, BlocksBeforeTheFirstThatIsTrainedKeepNothing) {
  const std::vector<std::string> settings = {
      R"(train.freeze=["model.embed_tokens.*", "model.layers.0.*", "model.layers.1.*"])"};
  const Activations activations = Of(EstimatedModel(), Shape(), settings);
  EXPECT_EQ(activations.blocks, kBlockBytes - kNormInputBytes);
  EXPECT_EQ(activations.at_end, kHiddenBytes);
  EXPECT_EQ(activations.at_loss, kNormBytes + kLossBytes);
  ForwardShape shape = Shape();
  shape.checkpoints_blocks = true;
  const Activations checkpointed = Of(EstimatedModel(), shape, settings);
  EXPECT_EQ(checkpointed.blocks, kHiddenBytes);
  EXPECT_EQ(checkpointed.recomputed, kBlockBytes - kHiddenBytes);
  // The blocks behind a trained embedding pass its gradient on.
  EXPECT_EQ(Of(EstimatedModel(), Shape(), {R"(train.freeze=["*.layers.*", "lm_head.*"])"}).blocks,
            3 * (kBlockBytes - 4 * kHiddenBytes - kTokens * 128 * 4));
}

TEST(ActivationsTest, Gpt2UnderAdaptersKeepsWhatTheseMultiply) {
  const ModelConfig model = ParseModelConfig(
      ParseStrictJson(R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 3,
                          "n_head": 2, "n_positions": 16})",
                      "model"),
      "model");
  const Activations activations = Of(model, Shape(), {"lora.rank=2", R"(lora.targets=["c_attn"])"});
  const int64_t input = kTokens * (64 * 4 + 8);
  EXPECT_EQ(activations.blocks, 3 * (2 * input + kHiddenBytes + 4 * kHiddenBytes + kTokens * 2 * 4 +
                                     kTokens * 256 * 4 + kTokens * 2 * 4) -
                                    input);
  EXPECT_EQ(activations.at_end, kHiddenBytes);
}

}  // namespace
}  // namespace fsdprun::worker
