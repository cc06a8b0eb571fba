// Segments that are not reentrant: what they save, compute again, and keep.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fsdp/activation_checkpoint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

at::Tensor leaf(at::IntArrayRef sizes, double scale = 1) {
  at::Tensor values =
      (at::arange(c10::multiply_integers(sizes), at::kDouble) * 0.7).sin().view(sizes) * scale;
  return values.to(at::kFloat).set_requires_grad(true);
}

/// Two layers, and how often they have been computed.
struct Segment {
  at::Tensor first = leaf({8, 4}), second = leaf({4, 8});
  int first_runs = 0, second_runs = 0, ends = 0;

  at::Tensor run(const at::Tensor& x) {
    ++first_runs;
    at::Tensor hidden = at::gelu(at::linear(x, first));
    ++second_runs;
    at::Tensor y = at::linear(hidden, second);
    ++ends;
    return y;
  }
};

struct Gradients {
  at::Tensor loss, input, first, second;
};

Gradients take(const at::Tensor& loss, const at::Tensor& x, Segment& segment) {
  return {loss.detach().clone(), x.grad(), segment.first.grad(), segment.second.grad()};
}

Gradients plain() {
  Segment segment;
  const at::Tensor x = leaf({3, 4});
  const at::Tensor loss = segment.run(x).square().sum();
  loss.backward();
  return take(loss, x, segment);
}

void expect_same_bits(const Gradients& one, const Gradients& other) {
  EXPECT_TRUE(at::equal(one.loss, other.loss));
  EXPECT_TRUE(at::equal(one.input, other.input));
  EXPECT_TRUE(at::equal(one.first, other.first));
  EXPECT_TRUE(at::equal(one.second, other.second));
}

TEST(CheckpointTest, GivesTheBitsOfAPlainRunAndComputesOnceMore) {
  for (const bool early : {true, false}) {
    Segment segment;
    const at::Tensor x = leaf({3, 4});
    const at::Tensor y = activation_checkpoint(
        CheckpointOptions{.early_stop = early}, [&](const at::Tensor& t) { return segment.run(t); },
        x);
    EXPECT_EQ(segment.first_runs, 1);
    const at::Tensor loss = y.square().sum();
    loss.backward();
    EXPECT_EQ(segment.first_runs, 2) << "not once per saved tensor";
    expect_same_bits(take(loss, x, segment), plain());
  }
}

TEST(CheckpointTest, EndsWithTheLastTensorThatIsSaved) {
  for (const bool early : {true, false}) {
    Segment segment;
    const at::Tensor x = leaf({3, 4});
    activation_checkpoint(
        CheckpointOptions{.early_stop = early}, [&](const at::Tensor& t) { return segment.run(t); },
        x)
        .sum()
        .backward();
    EXPECT_EQ(segment.ends, early ? 1 : 2);
  }
}

TEST(CheckpointTest, NeedsNoArgumentWithAGradient) {
  Segment segment;
  const at::Tensor x = leaf({3, 4}).detach();
  activation_checkpoint(
      CheckpointOptions{}, [&](const at::Tensor& t) { return segment.run(t); }, x)
      .square()
      .sum()
      .backward();
  EXPECT_TRUE(at::equal(segment.first.grad(), plain().first));
}

TEST(CheckpointTest, ResultMayBeAnything) {
  Segment segment;
  const at::Tensor x = leaf({3, 4});
  struct Result {
    at::Tensor y;
    std::map<std::string, at::Tensor> cache;
    int layers = 0;
  };
  const Result result = activation_checkpoint(
      CheckpointOptions{},
      [&](const at::Tensor& t, double scale) {
        const at::Tensor y = segment.run(t);
        return Result{y * scale, {{"y", y}}, 2};
      },
      x, 2.0);
  EXPECT_EQ(result.layers, 2);
  (result.y + result.cache.at("y")).sum().backward();
  EXPECT_EQ(segment.first_runs, 2);
  EXPECT_TRUE(x.grad().defined());
}

TEST(CheckpointTest, BackwardMayBeRestrictedRepeatedAndDifferentiated) {
  Segment segment;
  const at::Tensor x = leaf({3, 4});
  const auto run = [&](const at::Tensor& t) { return segment.run(t); };
  const at::Tensor loss = activation_checkpoint(CheckpointOptions{}, run, x).square().sum();
  const at::Tensor of_input = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(at::equal(of_input, plain().input));
  EXPECT_FALSE(segment.first.grad().defined()) << "parameters were not asked for";
  const at::Tensor again = torch::autograd::grad({loss}, {x}, {}, true)[0];
  EXPECT_TRUE(at::equal(again, of_input));
  EXPECT_EQ(segment.first_runs, 3);

  const at::Tensor with_graph = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  const at::Tensor second = torch::autograd::grad({with_graph.square().sum()}, {x})[0];
  Segment other;
  const at::Tensor plain_x = leaf({3, 4});
  const at::Tensor plain_grad =
      torch::autograd::grad({other.run(plain_x).square().sum()}, {plain_x}, {}, true, true)[0];
  EXPECT_TRUE(at::equal(second, torch::autograd::grad({plain_grad.square().sum()}, {plain_x})[0]));
}

TEST(CheckpointTest, SegmentsLieWithinSegments) {
  Segment inner, outer;
  const at::Tensor x = leaf({3, 4});
  const auto run = [&](const at::Tensor& t) {
    const at::Tensor y = outer.run(t);
    return activation_checkpoint(
        CheckpointOptions{}, [&](const at::Tensor& u) { return inner.run(u); }, y);
  };
  const at::Tensor loss = activation_checkpoint(CheckpointOptions{}, run, x).square().sum();
  loss.backward();
  Segment plain_inner, plain_outer;
  const at::Tensor plain_x = leaf({3, 4});
  const at::Tensor plain_loss = plain_inner.run(plain_outer.run(plain_x)).square().sum();
  plain_loss.backward();
  EXPECT_TRUE(at::equal(loss, plain_loss));
  EXPECT_TRUE(at::equal(x.grad(), plain_x.grad()));
  EXPECT_TRUE(at::equal(inner.second.grad(), plain_inner.second.grad()));
  EXPECT_TRUE(at::equal(outer.first.grad(), plain_outer.first.grad()));
}

TEST(CheckpointTest, RandomNumbersAreTheSameInBothRuns) {
  const auto train = [](bool is_checkpointed) {
    at::manual_seed(3);
    Segment segment;
    const at::Tensor x = leaf({3, 4});
    const auto run = [&](const at::Tensor& t) { return at::dropout(segment.run(t), 0.5, true); };
    const at::Tensor y = is_checkpointed
                             ? activation_checkpoint(CheckpointOptions{.early_stop = false}, run, x)
                             : run(x);
    const at::Tensor after = at::rand({2});
    y.square().sum().backward();
    return std::make_tuple(x.grad(), after, at::rand({2}));
  };
  const auto [plain_grad, plain_after, plain_end] = train(false);
  const auto [grad, after, end] = train(true);
  EXPECT_TRUE(at::equal(grad, plain_grad));
  EXPECT_TRUE(at::equal(after, plain_after));
  EXPECT_TRUE(at::equal(end, plain_end)) << "the other run leaves the generator as it was";
}

/// The gradient of a segment with dropout, and the first number behind its backward.
std::pair<at::Tensor, at::Tensor> train_reentrant(std::optional<bool> preserve_rng_state) {
  at::manual_seed(3);
  const at::Tensor x = leaf({64});
  const auto run = [](const at::Tensor& t) { return at::dropout(t * t, 0.5, true); };
  CheckpointOptions options;
  options.use_reentrant = true;
  options.preserve_rng_state = preserve_rng_state.value_or(true);
  const at::Tensor y =
      preserve_rng_state ? activation_checkpoint(options, run, x) : activation_checkpoint(run, x);
  at::rand({2});
  y.sum().backward();
  return {x.grad(), at::rand({2})};
}

TEST(CheckpointTest, ReentrantSegmentsDrawTheSameNumbersUnlessTheyAreToldNotTo) {
  at::manual_seed(3);
  const at::Tensor x = leaf({64});
  at::dropout(x * x, 0.5, true).sum().backward();
  at::rand({2});
  const at::Tensor end = at::rand({2});
  for (const std::optional<bool> preserve : {std::optional<bool>(), std::optional<bool>(true)}) {
    const auto [grad, after] = train_reentrant(preserve);
    EXPECT_TRUE(at::equal(grad, x.grad()));
    EXPECT_TRUE(at::equal(after, end));
  }
  const auto [grad, after] = train_reentrant(false);
  EXPECT_FALSE(at::equal(grad, x.grad()));
  EXPECT_FALSE(at::equal(after, end)) << "the generator goes on";
}

TEST(CheckpointTest, MemoryIsFreedWithTheGraphAndBySegments) {
  Segment segment;
  at::Tensor x = leaf({3, 4});
  const auto run = [&](const at::Tensor& t) { return segment.run(t); };
  {
    at::Tensor h = x * 2;
    const c10::weak_intrusive_ptr<c10::TensorImpl> kept(h.getIntrusivePtr());
    at::Tensor y = activation_checkpoint(CheckpointOptions{}, run, h);
    h.reset();
    y.sum().backward();
    y.reset();
    EXPECT_TRUE(kept.expired());
  }
}

TEST(CheckpointTest, SegmentThatDoesSomethingElseIsRefused) {
  int runs = 0;
  const at::Tensor x = leaf({3, 4});
  const auto other_shape = [&](const at::Tensor& t) {
    return (++runs == 1 ? t : t.narrow(0, 0, 1)).exp().sum();
  };
  EXPECT_THAT(
      refusal([&] { activation_checkpoint(CheckpointOptions{}, other_shape, x).backward(); }),
      ::testing::AllOf(HasSubstr("of shape [3, 4]"), HasSubstr("[1, 4]"),
                       HasSubstr("same in both runs")));
  runs = 0;
  const auto fewer = [&](const at::Tensor& t) { return ++runs == 1 ? t.exp().exp() : t.exp(); };
  EXPECT_THAT(
      refusal([&] { activation_checkpoint(CheckpointOptions{}, fewer, x).sum().backward(); }),
      HasSubstr("saved 2 tensors for backward, and 1 when it was run again"));
}

TEST(CheckpointTest, ExceptionOfTheOtherRunIsTheBackwards) {
  int runs = 0;
  const at::Tensor x = leaf({3, 4});
  const auto fails = [&](const at::Tensor& t) {
    TORCH_CHECK(++runs == 1, "told to fail");
    return t.exp();
  };
  const at::Tensor loss = activation_checkpoint(CheckpointOptions{}, fails, x).sum();
  EXPECT_THAT(refusal([&] { loss.backward(); }), HasSubstr("told to fail"));
  const at::Tensor other = leaf({3, 4});
  (other.exp().sum()).backward();  // hooks are gone
  EXPECT_TRUE(at::equal(other.grad(), other.exp().detach()));
}

TEST(CheckpointTest, WithoutGradModeItIsACall) {
  Segment segment;
  const at::NoGradGuard no_grad;
  const at::Tensor y = activation_checkpoint(
      CheckpointOptions{}, [&](const at::Tensor& t) { return segment.run(t); }, leaf({3, 4}));
  EXPECT_FALSE(y.requires_grad());
}

TEST(CheckpointTest, ReentrantTakesOneTensor) {
  Segment segment;
  const at::Tensor x = leaf({3, 4});
  const at::Tensor loss = activation_checkpoint(
                              CheckpointOptions{.use_reentrant = true},
                              [&](const at::Tensor& t) { return segment.run(t); }, x)
                              .square()
                              .sum();
  loss.backward();
  expect_same_bits(take(loss, x, segment), plain());
  EXPECT_THAT(refusal([&] {
                activation_checkpoint(
                    CheckpointOptions{.use_reentrant = true},
                    [](const at::Tensor& t) { return std::make_tuple(t, 1); }, x);
              }),
              HasSubstr("returns one tensor"));
}

// Each of its threads asks for what another one has just replaced.
TEST(CheckpointTest, ThreadsThatAskAtOnceRunTheSegmentOneAfterTheOther) {
  std::atomic<int> inside{0}, most{0};
  const auto run = [&](const at::Tensor& t) {
    const int now = ++inside;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    at::Tensor y = t;
    for (int i = 0; i < 8; ++i) {
      y = y.sin();
      std::this_thread::yield();
    }
    --inside;
    return y;
  };
  const at::Tensor x = leaf({3, 4});
  const at::Tensor expected = torch::autograd::grad({run(x).sum()}, {x})[0];
  const at::Tensor loss =
      activation_checkpoint(CheckpointOptions{.early_stop = false}, run, x).sum();
  most = 0;
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 8; ++round) {
        const at::Tensor found = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
        equal += at::equal(found, expected) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(equal, 4 * 8);
  EXPECT_EQ(most, 1);
}

using torch::autograd::Engine;

/// As in a process whose default engine nobody has replaced yet, and again behind it.
class FreshEngine {
 public:
  FreshEngine() { reset(); }
  ~FreshEngine() { reset(); }
  FreshEngine(const FreshEngine&) = delete;
  FreshEngine& operator=(const FreshEngine&) = delete;

 private:
  static void reset() {
    torch::autograd::set_default_engine_stub([]() -> Engine& { return Engine::get_base_engine(); });
  }
};

class SomebodysEngine : public Engine {};

Engine& somebodys_engine() {
  static SomebodysEngine& engine = *new SomebodysEngine;
  return engine;
}

TEST(CheckpointEngineTest, IsThereBeforeABackwardInWhichItIsNeeded) {
  const auto inner = [](const at::Tensor& t) {
    return activation_checkpoint(
        CheckpointOptions{}, [](const at::Tensor& u) { return u.exp(); }, t);
  };
  const FreshEngine fresh;
  const at::Tensor x = leaf({3, 4});
  const at::Tensor loss =
      activation_checkpoint(CheckpointOptions{.use_reentrant = true}, inner, x).sum();
  const Engine* const in_forward = &Engine::get_default_engine();
  EXPECT_NE(in_forward, &Engine::get_base_engine());
  loss.backward();
  EXPECT_EQ(&Engine::get_default_engine(), in_forward);
  EXPECT_TRUE(at::equal(x.grad(), x.exp().detach()));
}

TEST(CheckpointEngineTest, AnotherOneThatComesLaterIsRefused) {
  const FreshEngine fresh;
  const auto run = [](const at::Tensor& t) {
    return activation_checkpoint(
        CheckpointOptions{}, [](const at::Tensor& u) { return u.exp(); }, t);
  };
  run(leaf({3, 4}));
  torch::autograd::set_default_engine_stub(somebodys_engine);
  EXPECT_THAT(refusal([&] {
                run(leaf({3, 4}));
              }),
              ::testing::AllOf(HasSubstr("autograd engine"), HasSubstr("use_reentrant")));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(run(leaf({3, 4})).dim(), 2) << "nothing is saved";
}

TEST(SelectiveCheckpointTest, KeptResultsAreNotComputedAgain) {
  std::vector<std::string> asked;
  Segment segment;
  const at::Tensor x = leaf({3, 4});
  const at::Tensor loss =
      activation_checkpoint(
          CheckpointOptions{.early_stop = false,
                            .keeps_results_of =
                                [&](const std::string& op) {
                                  asked.push_back(op);
                                  return op == "aten::mm" || op == "aten::addmm";
                                }},
          [&](const at::Tensor& t) { return segment.run(t); }, x)
          .square()
          .sum();
  EXPECT_THAT(asked, ::testing::Contains("aten::mm"));
  const size_t asked_in_forward = asked.size();
  loss.backward();
  EXPECT_EQ(asked.size(), asked_in_forward) << "once per operator";
  expect_same_bits(take(loss, x, segment), plain());
}

TEST(SelectiveCheckpointTest, BehindAKeptOperatorRandomNumbersGoOnAsInTheFirstRun) {
  int kept = 0;
  const auto train = [&](bool is_checkpointed) {
    at::manual_seed(3);
    const at::Tensor x = leaf({8, 8});
    const auto run = [](const at::Tensor& t) {
      const at::Tensor first = std::get<0>(at::native_dropout(t.exp(), 0.5, /*train=*/true));
      const at::Tensor hidden = first.sin();
      const at::Tensor second = hidden * at::empty_like(hidden).bernoulli_(0.5);
      return second.cos() * at::rand_like(second);
    };
    const CheckpointOptions options{.early_stop = false,
                                    .keeps_results_of = [&](const std::string& op) {
                                      const bool keeps = op == "aten::native_dropout";
                                      kept += keeps ? 1 : 0;
                                      return keeps;
                                    }};
    const at::Tensor y = is_checkpointed ? activation_checkpoint(options, run, x) : run(x);
    const at::Tensor after = at::rand({2});
    y.square().sum().backward();
    return std::make_tuple(x.grad(), after, at::rand({2}));
  };
  const auto [plain_grad, plain_after, plain_end] = train(false);
  const auto [grad, after, end] = train(true);
  EXPECT_EQ(kept, 1);
  EXPECT_TRUE(at::equal(grad, plain_grad));
  EXPECT_TRUE(at::equal(after, plain_after));
  EXPECT_TRUE(at::equal(end, plain_end)) << "the other run leaves the generator as it was";
}

// A result that a product would not give shows that none was computed.
TEST(SelectiveCheckpointTest, ReplayTakesWhatWasKept) {
  const at::Tensor weight = leaf({4, 4});
  const at::Tensor x = leaf({3, 4});
  at::Tensor products;
  const at::Tensor loss =
      activation_checkpoint(
          CheckpointOptions{.early_stop = false, .keeps_results_of = keep_results_of({"aten::mm"})},
          [&](const at::Tensor& t) {
            const at::Tensor product = at::mm(t, weight);
            products = product.detach();
            return product.exp();
          },
          x)
          .sum();
  const void* first = products.data_ptr();
  loss.backward();
  EXPECT_EQ(products.data_ptr(), first);
}

TEST(SelectiveCheckpointTest, WritingAKeptResultIsAnError) {
  const at::Tensor weight = leaf({4, 4});
  const at::Tensor x = leaf({3, 4});
  const at::Tensor loss =
      activation_checkpoint(
          CheckpointOptions{.early_stop = false, .keeps_results_of = keep_results_of({"aten::mm"})},
          [&](const at::Tensor& t) { return at::mm(t, weight).relu_().exp(); }, x)
          .sum();
  EXPECT_THAT(refusal([&] { loss.backward(); }),
              ::testing::AllOf(HasSubstr("aten::mm"), HasSubstr("modified in place")));
}

}  // namespace
}  // namespace fsdp::testing
