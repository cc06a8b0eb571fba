#include "worker/estimate/estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/worker/estimate/small_estimate.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kBlock = 4 * 4096 + 3 * 8192 + 128;
constexpr int64_t kRoot = 2 * 16384 + 64;
constexpr int64_t kAll = 3 * kBlock + kRoot;
constexpr int64_t kWeights = 3 * 9 + 3;
// With padding: a rank's part of a block is 81 rows of 128, of the rest 129 rows of 64.
constexpr int64_t kBlockOf4 = 81 * 128;
constexpr int64_t kRootOf4 = 129 * 64;

Estimate EstimateOf(const std::vector<std::string>& settings, int64_t ranks = 4,
                    const std::string& more = "") {
  return EstimateRun(EstimatedConfig(settings), EstimatedModel(more),
                     {.ranks = ranks, .speed = {}});
}

TEST(EstimateTest, ParametersAreCounted) {
  const Estimate estimate = EstimateOf({});
  EXPECT_EQ(estimate.parameters, kAll);
  EXPECT_EQ(estimate.trainable, kAll);
  EXPECT_EQ(estimate.parameters_of_rank, 3 * kBlockOf4 + kRootOf4);
}

TEST(EstimateTest, ShardsGradientsAndStateAreOfARank) {
  const Estimate estimate = EstimateOf({});
  const int64_t shards = 4 * (3 * kBlockOf4 + kRootOf4);
  EXPECT_EQ(estimate.held.shards, shards);
  EXPECT_EQ(estimate.held.gradients, shards);
  EXPECT_EQ(estimate.optimizer.state, 2 * shards);
  EXPECT_EQ(estimate.optimizer.working, 0);
  // The block that runs, the one ahead, and what is around them; as many gradients.
  EXPECT_EQ(estimate.held.gathered, 4 * 4 * (2 * kBlockOf4 + kRootOf4));
  EXPECT_EQ(estimate.held.unreduced, 4 * 4 * (2 * kBlockOf4 + kRootOf4));
}

TEST(EstimateTest, StrategiesKeepMoreOrLessGathered) {
  EXPECT_EQ(EstimateOf({"parallel.strategy=shard_grad_op"}).held.gathered,
            4 * 4 * (3 * kBlockOf4 + kRootOf4));
  const Estimate half = EstimateOf({"precision.param=bfloat16"});
  EXPECT_EQ(half.held.gathered, 2 * 4 * (2 * kBlockOf4 + kRootOf4));
  EXPECT_EQ(half.held.shards, 4 * (3 * kBlockOf4 + kRootOf4));
  // Two copies of a model on two ranks each.
  const Estimate copies = EstimateOf({"parallel.dp_replicate=2"});
  EXPECT_EQ(copies.arrangement.shard_ranks, 2);
  EXPECT_GT(copies.held.shards, 4 * kAll / 2 - 1);
  EXPECT_LT(copies.held.shards, 4 * kAll / 2 * 1.02);
  EXPECT_THROW(EstimateOf({"parallel.dp_replicate=3"}), ConfigError);
}

TEST(EstimateTest, OneRankHasNothingBesideItsWeights) {
  const Estimate alone = EstimateOf({}, 1);
  EXPECT_EQ(alone.held.gathered, 0);
  EXPECT_EQ(alone.held.unreduced, 0);
  EXPECT_EQ(alone.traffic.total(), 0);
}

TEST(EstimateTest, GradientsThatAreReducedOnceAreAllThere) {
  const Estimate each = EstimateOf({"train.grad_accumulation=2"});
  const Estimate once =
      EstimateOf({"train.grad_accumulation=2", "train.sync_each_micro_batch=false"});
  // The third block; and what is reduced need not wait beside a sum that it is added to.
  EXPECT_EQ(once.held.unreduced - each.held.unreduced,
            4 * 4 * kBlockOf4 - 4 * (3 * kBlockOf4 + kRootOf4));
  EXPECT_EQ(once.step.forwards, 2);
  EXPECT_EQ(once.step.reductions, 1);
  EXPECT_EQ(each.traffic.reduced, 2 * once.traffic.reduced);
  EXPECT_EQ(each.traffic.gathered, once.traffic.gathered);
}

TEST(EstimateTest, OptimizersKeepDifferentStates) {
  const int64_t shards = 4 * (3 * kBlockOf4 + kRootOf4);
  EXPECT_EQ(EstimateOf({"optimizer.name=sgd"}).optimizer.state, 0);
  EXPECT_EQ(EstimateOf({"optimizer.name=sgd", "optimizer.momentum=0.9"}).optimizer.state, shards);
  const Estimate muon = EstimateOf({"optimizer.name=muon"});
  // One number of a block's matrices, two of its norms and of all that is outside.
  EXPECT_EQ(muon.optimizer.state, 4 * (3 * (kBlockOf4 + 2 * 128) + 2 * kRootOf4));
  EXPECT_GT(muon.optimizer.working, 0);
  EXPECT_EQ(muon.optimizer.state_of_model, 4 * (3 * (kBlock - 128 + 2 * 128) + 2 * kRoot));
}

TEST(EstimateTest, TrafficIsThatOfRings) {
  const Estimate estimate = EstimateOf({});
  // Three quarters of what is gathered: blocks twice, the rest once.
  EXPECT_EQ(estimate.traffic.gathered, 3 * 4 * (2 * 3 * kBlockOf4 + kRootOf4));
  EXPECT_EQ(estimate.traffic.reduced, 3 * 4 * (3 * kBlockOf4 + kRootOf4));
  EXPECT_EQ(estimate.traffic.copied, 0);
  EXPECT_EQ(EstimateOf({"parallel.strategy=shard_grad_op"}).traffic.gathered,
            3 * 4 * (3 * kBlockOf4 + kRootOf4));
  // A whole model on each rank: two rings of all gradients.
  const Estimate copies = EstimateOf({"parallel.dp_replicate=4"});
  EXPECT_EQ(copies.traffic.gathered, 0);
  EXPECT_EQ(copies.traffic.reduced, 0);
  EXPECT_NEAR(copies.traffic.copied, 2 * 0.75 * 4 * kAll, 0.01 * kAll);
}

TEST(EstimateTest, RanksOfAHostReadInPlace) {
  const Estimate estimate = EstimateOf({"parallel.backend=shm"}, 2);
  EXPECT_FALSE(estimate.arrangement.is_gpu);
  EXPECT_EQ(estimate.traffic.gathered, 0);
  EXPECT_EQ(estimate.held.gathered, 0);
  EXPECT_GT(estimate.traffic.reduced, 0);
}

TEST(EstimateTest, ACheckpointHasWeightsStatesAndCounts) {
  EXPECT_EQ(EstimateOf({}).checkpoint_bytes, 12 * kAll + 4 * kWeights);
  EXPECT_EQ(EstimateOf({"optimizer.name=sgd"}).checkpoint_bytes, 4 * kAll + 4 * kWeights);
}

TEST(EstimateTest, AdaptersAloneAreTrained) {
  const Estimate estimate = EstimateOf({"lora.rank=2", R"(lora.targets=["q_proj"])"});
  EXPECT_EQ(estimate.trainable, 3 * 2 * 2 * 64);
  EXPECT_EQ(estimate.parameters, kAll + estimate.trainable);
  EXPECT_LT(estimate.held.gradients, estimate.held.shards / 10);
  EXPECT_LT(estimate.traffic.reduced, estimate.traffic.gathered / 10);
  const Estimate frozen = EstimateOf({R"(train.freeze=["*embed_tokens*"])"});
  EXPECT_EQ(frozen.trainable, kAll - 16384);
}

// Of a token: six for each element of a matrix, and attention over 16 tokens of 64 numbers in three
// blocks.
constexpr double kFlopsOfHead = 6 * 16384;
constexpr double kFlopsOfToken = 6 * 3 * (4 * 4096 + 3 * 8192) + kFlopsOfHead + 12 * 3 * 64 * 16;

TEST(EstimateTest, OperationsAreThoseOfMfu) {
  const Estimate estimate = EstimateOf({});
  EXPECT_EQ(estimate.windows_per_step, 8);
  EXPECT_EQ(estimate.tokens_per_step, 128);
  EXPECT_DOUBLE_EQ(estimate.model_flops, 128 * kFlopsOfToken);
  EXPECT_DOUBLE_EQ(estimate.executed_flops, estimate.model_flops);
  EXPECT_DOUBLE_EQ(EstimateOf({"train.activation_checkpointing=true"}).executed_flops,
                   128 * (kFlopsOfToken + (kFlopsOfToken - kFlopsOfHead) / 3));
}

TEST(EstimateTest, TimeIsWorkByAssumedSpeed) {
  const EstimateOptions options{.ranks = 4,
                                .speed = {.peak_flops = 1e9, .mfu = 0.5, .bandwidth = 1e8}};
  const Estimate estimate = EstimateRun(EstimatedConfig(), EstimatedModel(), options);
  ASSERT_TRUE(estimate.time);
  EXPECT_DOUBLE_EQ(estimate.time->compute_seconds, 128 * kFlopsOfToken / (4 * 0.5e9));
  EXPECT_DOUBLE_EQ(estimate.time->communication_seconds, estimate.traffic.total() / 1e8);
  EXPECT_DOUBLE_EQ(estimate.time->seconds(), estimate.time->compute_seconds);
  EXPECT_DOUBLE_EQ(estimate.time->seconds_without_overlap(),
                   estimate.time->compute_seconds + estimate.time->communication_seconds);
  EXPECT_DOUBLE_EQ(estimate.tokens_per_second(), 128 / estimate.time->seconds());
  EXPECT_FALSE(EstimateOf({}).time);
}

TEST(EstimateTest, OneReductionHasNothingToAddTo) {
  // Of a GPU, in float32: gradients of several reductions are added to those that are there.
  const auto slots = [](const std::string& sync) {
    const TrainConfig config =
        EstimatedConfig({"train.grad_accumulation=2", "train.sync_each_micro_batch=" + sync});
    const ModelConfig model = EstimatedModel();
    const std::vector<WeightGroup> groups =
        GroupsOf(WeightsOf(config, model), config, ArrangementOf(config.parallel, 4), 2);
    return groups.front().memory.reduces_to_slot;
  };
  EXPECT_TRUE(slots("true"));
  EXPECT_FALSE(slots("false"));
}

TEST(EstimateTest, AnAutomaticBackendIsThatOfTheMachine) {
  const auto with = [](const std::string& automatic, const std::string& backend) {
    return EstimateRun(EstimatedConfig({"parallel.backend=" + backend}), EstimatedModel(),
                       {.ranks = 4, .speed = {}, .auto_backend = automatic});
  };
  EXPECT_TRUE(with("nccl", "auto").arrangement.is_gpu);
  EXPECT_FALSE(with("gloo", "auto").arrangement.is_gpu);
  EXPECT_EQ(with("shm", "auto").peak(), with("nccl", "shm").peak());
  EXPECT_LT(with("shm", "auto").peak(), with("nccl", "auto").peak());
  EXPECT_TRUE(with("shm", "nccl").arrangement.is_gpu);
}

TEST(EstimateTest, AsynchronousSavesHaveACopyOnTheHost) {
  const auto with = [](const std::string& backend, const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"checkpoint.dir=c", "parallel.backend=" + backend};
    settings.insert(settings.end(), more.begin(), more.end());
    return EstimateOf(settings);
  };
  const int64_t shards = 3 * kBlockOf4 + kRootOf4;
  EXPECT_EQ(with("gloo", {}).checkpoint_copy, 12 * shards);
  EXPECT_EQ(with("gloo", {}).peak() - with("gloo", {"checkpoint.async=false"}).peak(), 12 * shards);
  EXPECT_EQ(with("nccl", {}).checkpoint_copy, 12 * shards);
  EXPECT_EQ(with("nccl", {}).peak(), with("nccl", {"checkpoint.async=false"}).peak());
  EXPECT_EQ(EstimateOf({"parallel.backend=gloo"}).checkpoint_copy, 0);
  // The base of adapters is not saved.
  EXPECT_LT(with("gloo", {"lora.rank=1"}).checkpoint_copy, 4 * shards);
  EXPECT_GT(with("gloo", {"lora.rank=1"}).checkpoint_copy, 0);
}

TEST(EstimateTest, WhatInt64CannotCountIsRefused) {
  const auto model = [](int64_t layers) {
    const Json document = {{"model_type", "llama"},
                           {"vocab_size", 256},
                           {"hidden_size", int64_t{1} << 22},
                           {"intermediate_size", int64_t{1} << 22},
                           {"num_hidden_layers", layers},
                           {"num_attention_heads", 1024},
                           {"max_position_embeddings", int64_t{1} << 31}};
    return ParseModelConfig(document, "model");
  };
  const EstimateOptions options{.ranks = 4, .speed = {}};
  EXPECT_THROW(EstimateRun(EstimatedConfig(), model(8192), options), ConfigError);
  EXPECT_GT(EstimateRun(EstimatedConfig(), model(64), options).peak(), int64_t{1} << 50);
  const TrainConfig long_windows =
      EstimatedConfig({"data.seq_len=2147483648", "train.micro_batch_size=512"});
  EXPECT_THROW(EstimateRun(long_windows, model(1), options), ConfigError);
}

TEST(EstimateTest, BatchesThatCannotBeSharedAreRefused) {
  EXPECT_THROW(EstimateOf({"train.global_batch_size=2"}), ConfigError);
  EXPECT_THROW(EstimateOf({"train.global_batch_size=6"}), ConfigError);
  EXPECT_EQ(EstimateOf({"train.global_batch_size=6", "data.sampler=global"}).windows_per_step, 6);
}

TEST(EstimateTest, ThePeakIsWhatIsHeldAndTheMostOfTheRest) {
  const Estimate estimate = EstimateOf({});
  EXPECT_EQ(estimate.peak(), estimate.held.total() + estimate.optimizer.state + estimate.batches +
                                 estimate.activations.peak());
  EXPECT_EQ(estimate.batches, 32 * 48);
}

}  // namespace
}  // namespace fsdprun::worker
