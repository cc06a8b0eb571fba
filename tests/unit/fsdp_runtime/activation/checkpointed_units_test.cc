// Units within segments that are not reentrant, and around them.

#include <fsdp/counters.h>
#include <fsdp/optim.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/ranks.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {
namespace {

enum class Segments { kNone, kAroundEachUnit, kAroundAllUnits };

struct ToyWithSegments : torch::nn::Module {
  ToyWithSegments(const ToyConfig& config, Segments segments, CheckpointOptions options)
      : model(std::make_shared<ToyModel>(config)), segments(segments), options(std::move(options)) {
    register_module("model", model.ptr());
  }

  at::Tensor blocks(at::Tensor x) {
    for (const Unit<ToyBlock>& block : model->blocks) {
      x = segments == Segments::kAroundEachUnit
              ? activation_checkpoint(
                    options, [block](const at::Tensor& t) { return block(t); }, x)
              : block(x);
    }
    return x;
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = at::embedding(model->embedding, tokens);
    x = segments == Segments::kAroundAllUnits
            ? activation_checkpoint(
                  options, [this](const at::Tensor& t) { return blocks(t); }, x)
            : blocks(x);
    return at::linear(x * model->gain, model->head);
  }

  Unit<ToyModel> model;
  Segments segments;
  CheckpointOptions options;
};

/// The losses of a few steps, and what was gathered for them.
struct Course {
  std::vector<float> losses;
  RuntimeCounters counters;
};

Course train(Rank& rank, Segments segments, const CheckpointOptions& options = {},
             const FullyShardOptions& sharding = {}) {
  ToyConfig config{.blocks = 2};
  Unit<ToyWithSegments> model(std::make_shared<ToyWithSegments>(config, segments, options));
  FullyShardOptions with_mesh = sharding;
  with_mesh.mesh = rank.mesh;
  for (const Unit<ToyBlock>& block : model->model->blocks) {
    fully_shard(block.ptr(), with_mesh);
  }
  const FSDPModule root = fully_shard(model.ptr(), with_mesh);
  root.init_parameters(initialise);
  AdamW optimizer(root, {});
  Course course;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor tokens = tokens_of(config, step, rank.rank);
    const at::Tensor loss = loss_of(model(tokens), tokens);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    course.losses.push_back(loss.item<float>());
  }
  course.counters = runtime_counters(root);
  return course;
}

TEST(CheckpointedUnitsTest, LossesAreThoseWithoutSegments) {
  run_ranks(2, [](Rank& rank) {
    const Course plain = train(rank, Segments::kNone);
    for (const Segments segments : {Segments::kAroundEachUnit, Segments::kAroundAllUnits}) {
      for (const bool early : {true, false}) {
        const Course other = train(rank, segments, {.early_stop = early});
        EXPECT_EQ(other.losses, plain.losses) << static_cast<int>(segments) << early;
        EXPECT_EQ(other.counters.reductions, plain.counters.reductions);
      }
    }
  });
}

TEST(CheckpointedUnitsTest, UnitIsGatheredOnceForTheOtherRunAndBackward) {
  run_ranks(2, [](Rank& rank) {
    const Course plain = train(rank, Segments::kNone);
    const Course other = train(rank, Segments::kAroundEachUnit);
    EXPECT_EQ(other.counters.gathers, plain.counters.gathers);
  });
}

TEST(CheckpointedUnitsTest, KeptProductsChangeNothing) {
  run_ranks(2, [](Rank& rank) {
    const Course plain = train(rank, Segments::kNone);
    const CheckpointOptions keeping{.keeps_results_of =
                                        keep_results_of({"aten::mm", "aten::addmm"})};
    EXPECT_EQ(train(rank, Segments::kAroundEachUnit, keeping).losses, plain.losses);
    EXPECT_EQ(train(rank, Segments::kAroundAllUnits, keeping).losses, plain.losses);
  });
}

TEST(CheckpointedUnitsTest, MixedPrecisionComputesTheSameAgain) {
  run_ranks(2, [](Rank& rank) {
    const FullyShardOptions bf16{
        .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
    EXPECT_EQ(train(rank, Segments::kAroundEachUnit, {}, bf16).losses,
              train(rank, Segments::kNone, {}, bf16).losses);
  });
}

}  // namespace
}  // namespace fsdp::testing
