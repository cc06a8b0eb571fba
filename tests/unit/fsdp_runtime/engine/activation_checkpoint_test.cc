#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// What Python's torch.autocast("cpu", ...) does.
class Autocast {
 public:
  explicit Autocast(bool is_enabled, at::ScalarType dtype = at::kBFloat16, bool caches = true) {
    at::autocast::set_autocast_enabled(at::kCPU, is_enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_cache_enabled(caches);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

struct Seen {
  bool is_enabled = false;
  at::ScalarType dtype = at::kFloat;
  bool caches = false;
  bool operator==(const Seen&) const = default;
};

Seen now() {
  return {at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
          at::autocast::is_autocast_cache_enabled()};
}

/// The state of autocast in the two runs of a segment, which forward enters with `inside`; backward
/// runs under `outside`.
std::vector<Seen> states_seen(const std::function<std::unique_ptr<Autocast>()>& inside,
                              const std::function<std::unique_ptr<Autocast>()>& outside) {
  std::vector<Seen> seen;
  const at::Tensor x = at::ones({4}).requires_grad_();
  at::Tensor y;
  {
    const std::unique_ptr<Autocast> autocast = inside();
    y = activation_checkpoint(
        [&seen](const at::Tensor& t) {
          seen.push_back(now());
          return t * t;
        },
        x);
  }
  const std::unique_ptr<Autocast> autocast = outside();
  const Seen before = now();
  y.sum().backward();
  EXPECT_EQ(now(), before) << "the caller's state comes back";
  return seen;
}

TEST(ActivationCheckpointTest, RecomputationHasTheAutocastStateOfForward) {
  const auto none = [] { return std::unique_ptr<Autocast>(); };
  const auto half = [] { return std::make_unique<Autocast>(true, at::kHalf, /*caches=*/false); };
  EXPECT_EQ(states_seen(half, none), std::vector<Seen>(2, {true, at::kHalf, false}));
  EXPECT_EQ(states_seen(none, half), std::vector<Seen>(2, {false, at::kBFloat16, true}));
}

using Checkpointing = ToyConfig::Checkpointing;

/// Gradients of a forward under autocast with a backward outside of it.
Gradients autocast_gradients(const Unit<ToyModel>& model, int64_t rank) {
  model->zero_grad();
  const at::Tensor tokens = tokens_of(model->config, 0, rank);
  at::Tensor logits;
  {
    const Autocast autocast(true);
    logits = model(tokens);
  }
  loss_of(logits, tokens).backward();
  Gradients gradients;
  for (const auto& param : model->named_parameters()) {
    if (param.value().grad().defined() && param.key() != "head") {
      gradients[param.key()] = param.value().grad();
    }
  }
  return gradients;
}

TEST(ActivationCheckpointTest, GradientsUnderAutocastAreThoseWithoutCheckpointing) {
  for (const Checkpointing kind : {Checkpointing::kAroundUnit, Checkpointing::kInsideUnit}) {
    ToyConfig config;
    const Gradients expected = autocast_gradients(make_plain(config), 0);
    EXPECT_EQ(expected.size(), 2u + 3 * 3);
    config.checkpointing = kind;
    const Gradients actual = autocast_gradients(make_plain(config), 0);
    for (const auto& [fqn, gradient] : expected) {
      EXPECT_TRUE(actual.contains(fqn) && at::equal(actual.at(fqn), gradient)) << fqn;
    }
  }
}

TEST(ActivationCheckpointTest, RecomputationLeavesNoCastsOfWeightsBehind) {
  at::Tensor weight = at::full({3, 3}, 0.5).requires_grad_();
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  const auto line = [&weight](const at::Tensor& t) { return at::linear(t, weight); };
  at::Tensor y;
  {
    const Autocast autocast(true);
    y = activation_checkpoint(line, x);
  }
  y.sum().backward();
  {
    at::NoGradGuard no_grad;
    weight.fill_(2);  // the optimizer's step
  }
  const Autocast autocast(true);
  EXPECT_EQ(line(x).max().item<float>(), 6);
}

TEST(ActivationCheckpointTest, ShardedModelTrainsUnderAutocast) {
  for (const Checkpointing kind : {Checkpointing::kAroundUnit, Checkpointing::kInsideUnit}) {
    run_ranks(2, [&](Rank& rank) {
      ToyConfig config;
      config.checkpointing = kind;
      Sharded setup = make(rank, config);
      EXPECT_TRUE(autocast_gradients(setup.model, rank.rank).empty());
      Gradients expected = autocast_gradients(make_plain({}), 0);
      for (const auto& [fqn, gradient] : autocast_gradients(make_plain({}), 1)) {
        expected[fqn] = (expected[fqn] + gradient) / 2;
      }
      for (const LocalShard& slice : setup.root.sharded_gradients()) {
        if (!slice.fqn.ends_with("spare")) {
          expect_piece(slice, expected.at(slice.fqn), 0);
        }
      }
    });
  }
}

at::Tensor checkpointed_square(const at::Tensor& x) {
  return activation_checkpoint([](const at::Tensor& t) { return t * t; }, x);
}

TEST(ActivationCheckpointTest, ABackwardRestrictedToSomeInputsIsRefused) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  try {
    torch::autograd::grad({checkpointed_square(x).sum()}, {x});
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("restricted"), std::string::npos);
  }
}

TEST(ActivationCheckpointTest, ABackwardThatCreatesAGraphIsRefused) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  try {
    checkpointed_square(x).sum().backward({}, std::nullopt, /*create_graph=*/true);
    ADD_FAILURE() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("create_graph"), std::string::npos);
  }
}

TEST(ActivationCheckpointTest, ComplexResultsHaveGradients) {
  const at::Tensor x = at::arange(4, at::kFloat).requires_grad_();
  const auto segment = [](const at::Tensor& t) { return at::fft_fft(t * t); };
  at::real(activation_checkpoint(segment, x)).sum().backward();
  const at::Tensor checkpointed = x.grad().clone();
  x.mutable_grad().reset();
  at::real(segment(x)).sum().backward();
  EXPECT_TRUE(at::equal(checkpointed, x.grad()));
}

}  // namespace
}  // namespace fsdp::testing
