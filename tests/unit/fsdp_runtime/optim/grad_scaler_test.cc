// The states of a GradScaler, its mistakes, and what is saved of it.

#include <ATen/ATen.h>
#include <fsdp/grad_scaler.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tests/unit/fsdp_runtime/optim/spoiled.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

/// One rank, after the backward of a scaled loss.
struct OneScaledRank {
  explicit OneScaledRank(const Rank& rank) : setup(make(rank)), optimizer(setup.root, {}) {
    backward();
  }
  void backward() { scaler.scale(loss(setup.model, 0, 0)).backward(); }
  Sharded setup;
  AdamW optimizer;
  GradScaler scaler{{.init_scale = 8}};
};

TEST(GradScalerTest, RefusesStepsOutOfOrder) {
  run_ranks(1, [](Rank& rank) {
    OneScaledRank it(rank);
    EXPECT_THAT(refusal([&] { it.scaler.update(); }), HasSubstr("no inf checks were recorded"));
    it.scaler.unscale_(it.optimizer);
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(it.optimizer); }),
                HasSubstr("unscale_() has already been called"));
    it.scaler.step(it.optimizer);
    EXPECT_THAT(refusal([&] { it.scaler.step(it.optimizer); }),
                HasSubstr("step() has already been called"));
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(it.optimizer); }),
                HasSubstr("unscale_() is being called after step()"));
    EXPECT_EQ(it.optimizer.step_count(), 1);
    it.scaler.update();
    EXPECT_THAT(refusal([&] { it.scaler.update(); }), HasSubstr("no inf checks were recorded"));
    it.scaler.step(it.optimizer);
    EXPECT_EQ(it.optimizer.step_count(), 2);
  });
}

TEST(GradScalerTest, RefusesTheSameOfTorchOptim) {
  run_ranks(1, [](Rank& rank) {
    OneScaledRank it(rank);
    torch::optim::SGD optimizer(it.setup.root.parameters(), 0.1);
    it.scaler.unscale_(optimizer);
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(optimizer); }), HasSubstr("already been called"));
    it.scaler.step(optimizer);
    EXPECT_THAT(refusal([&] { it.scaler.step(optimizer); }), HasSubstr("already been called"));
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(optimizer); }), HasSubstr("after step()"));
    it.scaler.update();
    EXPECT_THAT(refusal([&] { it.scaler.step(optimizer, [] { return at::ones({}); }); }),
                HasSubstr("closure use is not supported"));
  });
}

TEST(GradScalerTest, RefusesWhatHasNotBeenScaledOrHasNoGradient) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    torch::optim::SGD sgd(setup.root.parameters(), 0.1);
    GradScaler scaler;
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { scaler.step(optimizer); }, [&] { scaler.unscale_(optimizer); },
             [&] { scaler.unscale_(setup.root); }, [&] { scaler.update(); },
             [&] { scaler.update(2); }}) {
      EXPECT_THAT(refusal(call), HasSubstr("there is no scale yet"));
    }
    scaler.scale(at::ones({}));
    scaler.unscale_(sgd);  // as in Python it is the step that says so
    EXPECT_THAT(refusal([&] { scaler.step(optimizer); }), HasSubstr("no inf checks"));
    EXPECT_THAT(refusal([&] { scaler.step(sgd); }), HasSubstr("no inf checks"));
    EXPECT_THAT(refusal([&] { scaler.update(); }), HasSubstr("no inf checks"));
    EXPECT_THAT(refusal([&] { scaler.unscale_(FSDPModule()); }), HasSubstr("empty FSDPModule"));
  });
}

// As of a rank whose script sets its own to None.
TEST(GradScalerTest, ARankWithoutGradientsTakesPart) {
  struct Call {
    const char* what;
    std::function<void(OneScaledRank&, torch::optim::SGD&)> step;
  };
  const std::vector<Call> calls = {
      {"AdamW", [](OneScaledRank& it, torch::optim::SGD&) { it.scaler.step(it.optimizer); }},
      {"torch", [](OneScaledRank& it, torch::optim::SGD& sgd) { it.scaler.step(sgd); }},
      {"module",
       [](OneScaledRank& it, torch::optim::SGD&) { it.scaler.step(it.setup.root, [] {}); }},
      {"unscale",
       [](OneScaledRank& it, torch::optim::SGD& sgd) {
         it.scaler.unscale_(sgd);
         it.scaler.step(sgd);
       }},
  };
  for (const Call& call : calls) {
    for (const bool overflows : {false, true}) {
      for (const int64_t without : {1, 2}) {
        run_ranks(2, [&](Rank& rank) {
          OneScaledRank it(rank);
          torch::optim::SGD sgd(it.setup.root.parameters(), 0.1);
          it.optimizer.zero_grad();
          it.backward();
          if (overflows && rank.rank == 1) {
            spoil(it.setup.root, kInf);
          }
          if (rank.rank < without) {
            for (at::Tensor& param : sgd.param_groups()[0].params()) {
              param.mutable_grad().reset();
            }
          }
          if (without == 2) {
            EXPECT_THAT(refusal([&] { call.step(it, sgd); }), HasSubstr("no inf checks"));
            return;
          }
          call.step(it, sgd);
          it.scaler.update();
          EXPECT_EQ(it.scaler.get_scale(), overflows ? 4 : 8) << call.what;
        });
      }
    }
  }
}

TEST(GradScalerTest, RefusesToUnscaleTwiceByTwoWays) {
  run_ranks(1, [](Rank& rank) {
    OneScaledRank it(rank);
    const FSDPModule block = fsdp_module(*it.setup.model->blocks[0]);
    it.scaler.unscale_(it.optimizer);
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(block); }), HasSubstr("with an optimizer's"));
    it.scaler.step(it.optimizer);
    it.scaler.update();
    it.scaler.unscale_(block);
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(it.setup.root); }), HasSubstr("another module's"));
    EXPECT_THAT(refusal([&] { it.scaler.step(it.optimizer); }), HasSubstr("only some"));
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(it.optimizer); }), HasSubstr("only some"));
    it.scaler.update();
    it.scaler.unscale_(it.setup.root);
    EXPECT_THAT(refusal([&] { it.scaler.unscale_(it.optimizer); }),
                HasSubstr("unscaled with a module's"));
  });
}

TEST(GradScalerTest, ScalesInTheDtypeOfAProductWithFloat32) {
  GradScaler scaler({.init_scale = 4});
  EXPECT_EQ(scaler.get_scale(), 4);
  const at::Tensor loss = at::full({}, 3, at::kHalf);
  EXPECT_EQ(scaler.scale(loss).scalar_type(), at::kFloat);
  EXPECT_EQ(scaler.scale(loss).item<float>(), 12);
  EXPECT_EQ(scaler.scale(loss.view({1})).scalar_type(), at::kHalf);
  const std::vector<at::Tensor> scaled = scaler.scale(std::vector<at::Tensor>{loss, at::ones({2})});
  EXPECT_TRUE(at::equal(scaled.at(1), at::full({2}, 4.0F)));
  scaler.update(16);
  EXPECT_EQ(scaler.get_scale(), 16);
}

TEST(GradScalerTest, DoesNothingWhenItIsDisabled) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    torch::optim::SGD sgd(setup.root.parameters(), 0.1);
    GradScaler scaler({.init_scale = -1, .enabled = false});
    const at::Tensor result = loss(setup.model, 0, 0);
    EXPECT_TRUE(scaler.scale(result).is_same(result));
    result.backward();
    scaler.unscale_(optimizer);
    scaler.unscale_(setup.root);
    scaler.step(optimizer);
    EXPECT_EQ(optimizer.step_count(), 1);
    EXPECT_EQ(scaler.step(sgd, [] { return at::full({}, 5); }).item<int>(), 5);
    bool is_updated = false;
    scaler.step(setup.root, [&] { is_updated = true; });
    EXPECT_TRUE(is_updated);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 1);
    EXPECT_TRUE(scaler.state_dict().is_empty());
    scaler.load_state_dict(ModelStateDict());
  });
}

TEST(GradScalerTest, GoesOnWithWhatItHasSaved) {
  run_ranks(1, [](Rank& rank) {
    OneScaledRank it(rank);
    const auto step = [&](GradScaler& scaler) {
      scaler.step(it.optimizer);
      scaler.update();
    };
    it.scaler.set_growth_interval(3);
    it.scaler.set_growth_factor(5);
    it.scaler.set_backoff_factor(0.25);
    step(it.scaler);
    step(it.scaler);
    const ModelStateDict saved = it.scaler.state_dict();
    EXPECT_EQ(saved.size(), 5u);
    EXPECT_EQ(std::get<at::Tensor>(saved["_growth_tracker"]).item<int64_t>(), 2);
    for (const bool has_begun : {false, true}) {
      GradScaler loaded;
      if (has_begun) {
        loaded.scale(at::ones({}));
      }
      loaded.load_state_dict(saved);
      EXPECT_EQ(loaded.get_scale(), 8);
      EXPECT_EQ(loaded.get_growth_interval(), 3);
      EXPECT_EQ(loaded.get_growth_factor(), 5);
      EXPECT_EQ(loaded.get_backoff_factor(), 0.25);
      loaded.scale(at::ones({}));
      step(loaded);
      EXPECT_EQ(loaded.get_scale(), 40) << "the third step without overflow";
    }
  });
}

TEST(GradScalerTest, RefusesStatesThatAreNone) {
  GradScaler scaler;
  EXPECT_THAT(refusal([&] { scaler.load_state_dict(ModelStateDict()); }), HasSubstr("is empty"));
  const auto with = [&](const std::string& key, const at::Tensor& value) {
    ModelStateDict dict;
    for (const auto& entry : scaler.state_dict()) {
      dict.insert(entry.key(), entry.key() == key ? StateValue(value) : entry.value());
    }
    return dict;
  };
  EXPECT_THAT(refusal([&] { scaler.load_state_dict(with("scale", at::ones({2}))); }),
              HasSubstr("\"scale\" is not a tensor of one element"));
  EXPECT_THAT(refusal([&] { scaler.load_state_dict(with("backoff_factor", at::ones({}))); }),
              HasSubstr("backoff_factor is 1"));
  ModelStateDict more = scaler.state_dict();
  more.insert("weight", at::ones({}));
  EXPECT_THAT(refusal([&] { scaler.load_state_dict(more); }), HasSubstr("6 entries"));
  EXPECT_EQ(scaler.get_scale(), 65536);
}

TEST(GradScalerTest, RefusesOptionsOutOfTheirRange) {
  EXPECT_THAT(refusal([] { GradScaler({.init_scale = 0}); }), HasSubstr("init_scale is 0"));
  EXPECT_THAT(refusal([] { GradScaler({.init_scale = kInf}); }), HasSubstr("init_scale is inf"));
  EXPECT_THAT(refusal([] { GradScaler({.growth_factor = 1}); }), HasSubstr("growth_factor is 1"));
  EXPECT_THAT(refusal([] { GradScaler({.backoff_factor = 1}); }), HasSubstr("backoff_factor is 1"));
  EXPECT_THAT(refusal([] { GradScaler({.growth_interval = 0}); }),
              HasSubstr("growth_interval is 0"));
  GradScaler scaler;
  EXPECT_THAT(refusal([&] { scaler.set_growth_factor(std::nan("")); }), HasSubstr("more than 1"));
  EXPECT_THAT(refusal([&] { scaler.set_backoff_factor(0); }), HasSubstr("(0, 1)"));
  EXPECT_THAT(refusal([&] { scaler.set_growth_interval(0); }), HasSubstr("at least 1"));
}

}  // namespace
}  // namespace fsdp::testing
