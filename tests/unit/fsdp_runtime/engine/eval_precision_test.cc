// What eval mode computes in, and the dtypes of buffers.

#include <c10/core/InferenceMode.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/full_params.h>
#include <fsdp/optim.h>
#include <fsdp/state_dict.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

/// Notes what it computes in.
struct ScaledLine : torch::nn::Module {
  explicit ScaledLine(int64_t width)
      : weight(register_parameter("weight", at::eye(width) * 0.7 + 0.013)),
        scale(register_buffer("scale", at::full({width}, 1.003))),
        calls(register_buffer("calls", at::zeros({1}, at::kLong))),
        same(register_buffer("same", at::eye(width))) {}
  at::Tensor forward(const at::Tensor& x) {
    seen = {x.scalar_type(), weight.scalar_type(), scale.scalar_type()};
    calls += 1;
    const at::Tensor y = at::tanh(at::linear(x, weight));
    return (same.scalar_type() == y.scalar_type() ? at::linear(y, same) : y) * scale;
  }
  at::Tensor weight, scale, calls;
  at::Tensor same;  // which changes no bits, but is multiplied in one dtype only
  std::vector<at::ScalarType> seen;
};

struct ScaledPair : torch::nn::Module {
  explicit ScaledPair(int64_t width)
      : first(std::make_shared<ScaledLine>(width)), second(std::make_shared<ScaledLine>(width)) {
    register_module("first", first.ptr());
    register_module("second", second.ptr());
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)) * gain; }
  at::Tensor gain = register_parameter("gain", at::ones({1}));
  Unit<ScaledLine> first, second;
};

struct EvalSetup {
  Unit<ScaledPair> model;
  FSDPModule root;
};

constexpr int64_t kNarrow = 6, kWide = 512;  // of whole pages, which peers read in place

EvalSetup shard_pair(const Rank& rank, int64_t width, MixedPrecisionPolicy policy) {
  EvalSetup setup{Unit<ScaledPair>(std::make_shared<ScaledPair>(width)), {}};
  const FullyShardOptions options{.mesh = rank.mesh, .mp_policy = std::move(policy)};
  fully_shard(setup.model->first.ptr(), options);
  fully_shard(setup.model->second.ptr(), options);
  setup.root = fully_shard(setup.model.ptr(), options);
  return setup;
}

MixedPrecisionPolicy half_but_in_eval() {
  return {.param_dtype = at::kBFloat16,
          .reduce_dtype = at::kFloat,
          .buffer_dtype = at::kBFloat16,
          .full_precision_in_eval = true};
}

at::Tensor input_of(const Rank& rank, int64_t width) {
  return at::arange(3 * width, at::kFloat).view({3, width}).sin() + static_cast<double>(rank.rank);
}

using Seen = std::vector<at::ScalarType>;
const Seen kAllHalf(3, at::kBFloat16);
const Seen kAllFloat(3, at::kFloat);

class EvalPrecisionTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EvalPrecisionTest, ::testing::Values(1, 2, 3));

TEST_P(EvalPrecisionTest, EvalModeComputesInTheParametersOwnDtype) {
  run_ranks(GetParam(), [](Rank& rank) {
    for (const int64_t width : {kNarrow, kWide}) {
      const EvalSetup setup = shard_pair(rank, width, half_but_in_eval());
      Unit<ScaledPair> plain(std::make_shared<ScaledPair>(width));
      const at::Tensor x = input_of(rank, width);
      for (int round = 0; round < 2; ++round) {
        setup.model->train();
        setup.model(x).sum().backward();
        EXPECT_EQ(setup.model->second->seen, kAllHalf);
        setup.model->eval();
        const at::NoGradGuard no_grad;
        plain->first->scale.fill_(setup.model->first->scale.to(at::kFloat)[0]);
        plain->second->scale.copy_(plain->first->scale);
        EXPECT_TRUE(at::equal(setup.model(x), plain(x)));
        EXPECT_EQ(setup.model->second->seen, kAllFloat);
      }
      EXPECT_EQ(setup.model->second->calls.item<int64_t>(), 4);
    }
  });
}

void evaluate(const EvalSetup& setup, const at::Tensor& x, bool is_part) {
  const at::NoGradGuard no_grad;
  setup.model->eval();
  is_part ? setup.model->first(x) : setup.model(x);
  setup.model->train();
}

TEST_P(EvalPrecisionTest, WhatRunsBetweenForwardAndBackwardChangesNothing) {
  using Between = std::function<void(const EvalSetup&, const at::Tensor&)>;
  const std::vector<Between> all = {
      [](const EvalSetup&, const at::Tensor&) {},
      [](const EvalSetup& setup, const at::Tensor& x) { evaluate(setup, x, false); },
      [](const EvalSetup& setup, const at::Tensor& x) { evaluate(setup, x, true); },
      [](const EvalSetup& setup, const at::Tensor&) { get_model_state_dict(setup.root); },
  };
  run_ranks(GetParam(), [&all](Rank& rank) {
    for (const bool reshards : {true, false}) {
      std::vector<std::vector<LocalShard>> trained;
      for (const Between& between : all) {
        const EvalSetup setup = shard_pair(rank, kNarrow, half_but_in_eval());
        setup.root.set_reshard_after_forward(reshards);
        AdamW optimizer(setup.root, {.lr = 0.01});
        const at::Tensor x = input_of(rank, kNarrow);
        for (int step = 0; step < 3; ++step) {
          between(setup, x);
          const at::Tensor result = setup.model(x);
          between(setup, x);
          result.sum().backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        trained.push_back(setup.root.sharded_parameters());
      }
      for (size_t run = 1; run < trained.size(); ++run) {
        for (size_t i = 0; i < trained[0].size(); ++i) {
          EXPECT_TRUE(at::equal(trained[0][i].local, trained[run][i].local)) << run;
        }
      }
    }
  });
}

/// Its second part is run again in backward.
struct Recomputing : ScaledPair {
  using ScaledPair::ScaledPair;
  at::Tensor forward(const at::Tensor& x) {
    return activation_checkpoint([this](const at::Tensor& y) { return second(y); }, first(x)) *
           gain;
  }
};

TEST(EvalPrecisionGradientTest, WhatIsRecomputedIsInFullPrecision) {
  run_ranks(2, [](Rank& rank) {
    std::vector<std::vector<LocalShard>> gradients;
    for (const bool is_mixed : {false, true}) {
      const Unit<Recomputing> model(std::make_shared<Recomputing>(kNarrow));
      const FullyShardOptions options{
          .mesh = rank.mesh, .mp_policy = is_mixed ? half_but_in_eval() : MixedPrecisionPolicy{}};
      fully_shard(model->first.ptr(), options);
      fully_shard(model->second.ptr(), options);
      const FSDPModule root = fully_shard(model.ptr(), options);
      model->eval();
      at::Tensor x = input_of(rank, kNarrow);
      model(x.requires_grad_()).sum().backward();
      EXPECT_EQ(model->second->seen, kAllFloat);
      gradients.push_back(root.sharded_gradients());
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i].local, gradients[1][i].local)) << gradients[0][i].fqn;
    }
  });
}

TEST_P(EvalPrecisionTest, TrainingGoesOnBehindAnEvaluationInInferenceMode) {
  run_ranks(GetParam(), [](Rank& rank) {
    for (const int64_t width : {kNarrow, kWide}) {
      const EvalSetup setup = shard_pair(rank, width, half_but_in_eval());
      const at::Tensor x = input_of(rank, width);
      for (int round = 0; round < 2; ++round) {
        setup.model->eval();
        {
          const c10::InferenceMode evaluating;
          setup.model->first(x);
          setup.model(x);
        }
        setup.model->train();
        setup.model(x).sum().backward();
      }
      EXPECT_TRUE(setup.root.sharded_gradients()[0].local.isfinite().all().item<bool>());
    }
  });
}

TEST(EvalPrecisionGradientTest, ACallThatIsRefusedChangesNothing) {
  run_ranks(2, [](Rank& rank) {
    const EvalSetup setup = shard_pair(rank, kNarrow, half_but_in_eval());
    const at::Tensor x = input_of(rank, kNarrow);
    const at::NoGradGuard no_grad;
    const at::Tensor before = setup.model(x);
    summon_full_params(setup.root, [&] {
      setup.model->eval();
      EXPECT_THROW(setup.model(x), c10::Error);
    });
    const at::Tensor evaluated = setup.model(x);
    EXPECT_EQ(evaluated.scalar_type(), at::kFloat);
    setup.model->train();
    EXPECT_TRUE(at::equal(setup.model(x), before));
  });
}

TEST(EvalPrecisionGradientTest, AGraphOfEvalModeIsInFullPrecision) {
  run_ranks(2, [](Rank& rank) {
    std::vector<std::vector<LocalShard>> gradients;
    for (const bool is_mixed : {false, true}) {
      const EvalSetup setup =
          shard_pair(rank, kWide,
                     is_mixed ? MixedPrecisionPolicy{.param_dtype = at::kBFloat16,
                                                     .reduce_dtype = at::kFloat,
                                                     .full_precision_in_eval = true}
                              : MixedPrecisionPolicy{});
      if (is_mixed) {
        setup.model(input_of(rank, kWide)).sum().backward();
        AdamW(setup.root, {}).zero_grad();
      }
      setup.model->eval();
      setup.model(input_of(rank, kWide)).sum().backward();
      gradients.push_back(setup.root.sharded_gradients());
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(at::equal(gradients[0][i].local, gradients[1][i].local)) << gradients[0][i].fqn;
    }
  });
}

TEST(BufferDtypeTest, IsOfForwardAndNotOfStateDicts) {
  run_ranks(2, [](Rank& rank) {
    const EvalSetup setup = shard_pair(rank, kNarrow, {.buffer_dtype = at::kBFloat16});
    EXPECT_EQ(setup.model->first->scale.scalar_type(), at::kFloat);
    setup.model(input_of(rank, kNarrow));
    EXPECT_EQ(setup.model->first->seen, (Seen{at::kFloat, at::kFloat, at::kBFloat16}));
    EXPECT_EQ(setup.model->first->scale.scalar_type(), at::kBFloat16);
    EXPECT_EQ(setup.model->first->calls.scalar_type(), at::kLong);
    ModelStateDict saved = get_model_state_dict(setup.root, {.full_state_dict = true});
    const at::Tensor scale = std::get<at::Tensor>(saved["first.scale"]);
    EXPECT_TRUE(at::equal(scale, at::full({kNarrow}, 1.003).to(at::kBFloat16).to(at::kFloat)));
    setup.model(input_of(rank, kNarrow));
    scale.fill_(2);
    set_model_state_dict(setup.root, saved, {.full_state_dict = true});
    setup.model(input_of(rank, kNarrow));
    EXPECT_TRUE(at::equal(setup.model->first->scale, at::full({kNarrow}, 2, at::kBFloat16)));
  });
}

}  // namespace
}  // namespace fsdp::testing
