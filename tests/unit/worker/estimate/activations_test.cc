#include "worker/estimate/activations.h"

#include <gtest/gtest.h>

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

// Two norms with a cast input, the normalised and the output, and a scale for each row; queries,
// keys, values and output, and a sum for each head; four tensors of the MLP.
constexpr int64_t kNormBytes = kTokens * (64 * 12 + 4);
constexpr int64_t kBlockBytes =
    2 * kNormBytes + kTokens * (4 * 64 * 4 + 2 * 4) + kTokens * 4 * 128 * 4;
constexpr int64_t kLossBytes = 12 * kTokens * 256;
constexpr int64_t kEmbeddingBytes = 256 * 64 * 4;
constexpr int64_t kHiddenBytes = kTokens * 64 * 4;

TEST(ActivationsTest, BlocksKeepWhatTheirOperationsSave) {
  const Activations activations = ActivationsOf(EstimatedModel(), Shape());
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
  const Activations activations = ActivationsOf(EstimatedModel(), shape);
  EXPECT_EQ(activations.blocks, 3 * kHiddenBytes);
  EXPECT_EQ(activations.recomputed, kBlockBytes - kHiddenBytes);  // the input is there already
  EXPECT_EQ(activations.peak(),
            activations.tables + 3 * kHiddenBytes + activations.recomputed + activations.in_block);
}

TEST(ActivationsTest, HalfPrecisionKeepsNormsInFull) {
  ForwardShape shape = Shape();
  shape.element_bytes = 2;
  const Activations activations = ActivationsOf(EstimatedModel(), shape);
  const int64_t norm = kTokens * (64 * (4 + 2 + 2) + 4);
  EXPECT_EQ(activations.blocks,
            3 * (2 * norm + kTokens * (4 * 64 * 2 + 2 * 4) + kTokens * 4 * 128 * 2));
  EXPECT_EQ(activations.at_loss, norm + kLossBytes);
}

TEST(ActivationsTest, KeysAreRepeatedForTheQueriesThatShareThem) {
  const ModelConfig shared = EstimatedModel(R"(, "num_key_value_heads": 1)");
  EXPECT_EQ(ActivationsOf(shared, Shape()).blocks, 3 * kBlockBytes);
  ForwardShape fused = Shape();
  fused.has_fused_kernels = true;
  // No normalised input, no copies of keys and values, nothing of silu.
  EXPECT_EQ(ActivationsOf(shared, fused).blocks,
            3 * (2 * kTokens * (64 * 8 + 4) + kTokens * ((2 * 64 + 2 * 32) * 4 + 2 * 4) +
                 kTokens * 3 * 128 * 4));
}

TEST(ActivationsTest, FusedLossHasGradientsInsteadOfLogits) {
  ForwardShape shape = Shape();
  shape.has_fused_kernels = true;
  const int64_t norm = kTokens * (64 * 8 + 4);
  EXPECT_EQ(ActivationsOf(EstimatedModel(), shape).at_loss,
            norm + kHiddenBytes + kEmbeddingBytes + kTokens * 256 * 4);
  shape.is_loss_divided = true;  // each gradient once more
  EXPECT_EQ(ActivationsOf(EstimatedModel(), shape).at_loss,
            norm + kHiddenBytes + kHiddenBytes + 2 * kEmbeddingBytes);
}

TEST(ActivationsTest, ATiedHeadsGradientWaitsForThatOfTheEmbedding) {
  const Activations tied =
      ActivationsOf(EstimatedModel(R"(, "tie_word_embeddings": true)"), Shape());
  const Activations own = ActivationsOf(EstimatedModel(), Shape());
  EXPECT_EQ(tied.in_block, own.in_block + kEmbeddingBytes);
  EXPECT_EQ(tied.at_end, own.at_end + 2 * kEmbeddingBytes);
}

TEST(ActivationsTest, AGpuHasTheGradientsOfAUnitBesides) {
  ForwardShape shape = Shape();
  shape.is_gpu = true;
  const Activations activations = ActivationsOf(EstimatedModel(), shape);
  const Activations on_cpu = ActivationsOf(EstimatedModel(), Shape());
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
  const Activations activations = ActivationsOf(model, Shape());
  EXPECT_EQ(activations.blocks, 3 * (kBlockBytes + 16 * 16 * 4));
  EXPECT_EQ(activations.tables, 2 * 16 * 32 * 4 + 16 * 16);
}

TEST(ActivationsTest, Gpt2IsCountedByItsOwnOperations) {
  const ModelConfig model = ParseModelConfig(
      ParseStrictJson(R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 3,
                          "n_head": 2, "n_positions": 16})",
                      "model"),
      "model");
  const Activations activations = ActivationsOf(model, Shape());
  const int64_t norm = kTokens * (64 * 8 + 8);
  EXPECT_EQ(activations.blocks,
            3 * (2 * norm + 4 * kHiddenBytes + kTokens * 2 * 4 + 2 * kTokens * 256 * 4));
  EXPECT_EQ(activations.at_end, 3 * kEmbeddingBytes + kHiddenBytes);
}

TEST(ActivationsTest, UnderAdaptersNoWeightHasAGradient) {
  ForwardShape shape = Shape();
  shape.is_gpu = true;
  shape.has_frozen_model = true;
  shape.adapter_ranks = 6;
  const Activations activations = ActivationsOf(EstimatedModel(), shape);
  EXPECT_EQ(activations.blocks, 3 * kBlockBytes + kTokens * 6 * 4);
  EXPECT_EQ(activations.at_loss, kNormBytes + kLossBytes);
  EXPECT_EQ(activations.at_end, kHiddenBytes);
}

}  // namespace
}  // namespace fsdprun::worker
