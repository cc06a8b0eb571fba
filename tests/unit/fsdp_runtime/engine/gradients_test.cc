#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/in_a_row.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(GradientsTest, ParametersUnusedOnSomeRanksAreReducedAsZeros) {
  run_ranks(3, [](Rank& rank) {
    Sharded setup = make(rank);
    setup.model->blocks[0]->use_spare = rank.rank == 2;
    PlainTraining plain({}, 3, {});
    const Gradients expected = plain.gradients([&](int64_t r) {
      plain.model->blocks[0]->use_spare = r == 2;
      return loss(plain.model, 0, r);
    });
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_GT(expected.at("block0.spare").abs().max().item<double>(), 0);
    EXPECT_FALSE(expected.contains("block1.spare"));
    expect_gradients(rank, setup.root, expected);
  });
}

// Autograd adds up both uses of a parameter before it hands over the gradient, so there is nothing
// to reduce until the unit's last use.
TEST(GradientsTest, TwoForwardsBeforeOneBackwardAreReducedOnce) {
  for (const bool uses_blocks_twice : {false, true}) {
    for (const int64_t ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](Rank& rank) {
        ToyConfig config;
        config.use_block_twice = uses_blocks_twice;
        Sharded setup = make(rank, config);
        PlainTraining plain(config, rank.size, {});
        const auto both = [](const Unit<ToyModel>& model, int64_t r) {
          return loss(model, 0, r) + loss(model, 1, r);
        };
        both(setup.model, rank.rank).backward();
        EXPECT_EQ(count(rank, "reduce_scatter"), rank.size == 1 ? 0 : 4);
        const int64_t slot_bytes = runtime_counters(setup.root).slot_bytes;
        expect_gradients(rank, setup.root,
                         plain.gradients([&](int64_t r) { return both(plain.model, r); }));
        Sharded one_by_one = make(rank, config);
        for (const int64_t step : {0, 1}) {  // the second prefetches in forward
          loss(one_by_one.model, step, rank.rank).backward();
          AdamW(one_by_one.root, {}).zero_grad();
        }
        EXPECT_EQ(slot_bytes, runtime_counters(one_by_one.root).slot_bytes);
      });
    }
  }
}

TEST(GradientsTest, RetainedGraphIsReducedOncePerBackward) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.use_block_twice = true;
    Sharded setup = make(rank, config);
    at::Tensor result = loss(setup.model, 0, rank.rank);
    result.backward({}, /*retain_graph=*/true);
    EXPECT_EQ(count(rank, "reduce_scatter"), 4);
    result.backward();
    EXPECT_EQ(count(rank, "reduce_scatter"), 8);
  });
}

// The first use has no input that needs a gradient, and therefore no end that autograd reports.
TEST(GradientsTest, UseOfDataAndUseOfActivationsAreReducedOnce) {
  struct Line : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
    at::Tensor weight = register_parameter("weight", at::eye(6) * 0.5);
  };
  struct Twice : torch::nn::Module {
    Twice() { register_module("line", line.ptr()); }
    at::Tensor forward(const at::Tensor& x) { return line(line(x)); }
    Unit<Line> line{std::make_shared<Line>()};
  };
  run_ranks(2, [](Rank& rank) {
    const at::Tensor x = at::arange(12, at::kFloat).view({2, 6});
    Unit<Twice> plain(std::make_shared<Twice>());
    plain(x).square().sum().backward();
    Unit<Twice> model(std::make_shared<Twice>());
    const FullyShardOptions options{
        .mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
    fully_shard(model->line.ptr(), options);
    const FSDPModule root = fully_shard(model.ptr(), options);
    model(x).square().sum().backward();
    EXPECT_EQ(count(rank, "reduce_scatter"), 1);
    expect_gradients(rank, root, {{"line.weight", plain->line->weight.grad()}});
  });
}

TEST(GradientsTest, TwoForwardsThenTwoBackwards) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    at::Tensor first = loss(setup.model, 0, rank.rank);
    at::Tensor second = loss(setup.model, 1, rank.rank);
    {
      at::NoGradGuard no_grad;  // a reference pass in between, as preference training does
      loss(setup.model, 2, rank.rank);
    }
    second.backward();
    first.backward();
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); });
    for (const auto& [fqn, gradient] :
         plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); })) {
      expected[fqn] = expected[fqn] + gradient;
    }
    expect_gradients(rank, setup.root, expected);
  });
}

TEST(GradientsTest, MicrobatchesWithoutSyncAreReducedOnce) {
  const auto train = [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (int pass = 0; pass < 2; ++pass) {  // the second pass reuses the slots of the first
      rank.comm->clear();
      setup.root.set_requires_gradient_sync(false);
      loss(setup.model, 0, rank.rank).backward();
      EXPECT_EQ(count(rank, "reduce_scatter"), 0);
      setup.root.set_requires_gradient_sync(true);
      loss(setup.model, 1, rank.rank).backward();
      EXPECT_EQ(count(rank, "reduce_scatter"), 4);
      AdamW(setup.root, {}).zero_grad();
    }
    setup.root.set_requires_gradient_sync(false);
    loss(setup.model, 0, rank.rank).backward();
    setup.root.set_requires_gradient_sync(true);
    loss(setup.model, 1, rank.rank).backward();
    const Gradients expected = plain.gradients(
        [&](int64_t r) { return loss(plain.model, 0, r) + loss(plain.model, 1, r); });
    // The reference adds the microbatches inside autograd, in another order.
    expect_gradients(rank, setup.root, expected, 1e-7);
  };
  for (const bool as_on_a_device : {false, true}) {
    run_ranks(2, train, as_on_a_device);
  }
}

/// A backend whose reduce-scatter cannot add: the reducer does.
struct WithoutAddition : RecordingCollectives {
  using RecordingCollectives::RecordingCollectives;
  bool has_reduce_scatter_onto(at::ScalarType) const override { return false; }
};

TEST(GradientsTest, MicrobatchesWithSyncAddUp) {
  for (const auto& [ranks, adds_itself] :
       std::vector<std::pair<int64_t, bool>>{{1, false}, {2, false}, {2, true}, {3, false}}) {
    run_ranks(ranks, [adds_itself = adds_itself](Rank& rank) {
      if (adds_itself) {
        rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"},
                                     std::make_shared<WithoutAddition>(rank.comm));
      }
      Sharded setup = make(rank);
      PlainTraining plain({}, rank.size, {});
      Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
      for (const auto& [fqn, gradient] :
           plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); })) {
        expected[fqn] = expected[fqn] + gradient;
      }
      loss(setup.model, 0, rank.rank).backward();
      loss(setup.model, 1, rank.rank).backward();
      expect_gradients(rank, setup.root, expected);
    });
  }
}

TEST(GradientsTest, StepAfterForwardWithoutBackwardIsSeenByTheNextForward) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    PlainTraining plain({}, 2, {});
    plain.update(plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
    loss(setup.model, 0, rank.rank).backward();
    loss(setup.model, 0, rank.rank);  // leaves the root gathered
    optimizer.step();
    at::NoGradGuard no_grad;
    EXPECT_EQ(loss(setup.model, 0, rank.rank).item<float>(),
              loss(plain.model, 0, rank.rank).item<float>());
  });
}

TEST(GradientsTest, GraphRunBackwardTwiceGivesTheGradientTwice) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    for (auto& [fqn, gradient] : expected) {
      gradient = gradient * 2;
    }
    at::Tensor result = loss(setup.model, 0, rank.rank);
    result.backward({}, /*retain_graph=*/true);
    result.backward();
    expect_gradients(rank, setup.root, expected);
  });
}

// The gradients of a backward that creates a graph have histories, which nobody can use.
TEST(GradientsTest, CollectedGradientsKeepNoGraphAlive) {
  const auto train = [](Rank& rank) {
    Sharded setup = make(rank);
    setup.root.set_requires_gradient_sync(false);
    std::weak_ptr<torch::autograd::Node> graph;
    for (int batch = 0; batch < 2; ++batch) {
      const at::Tensor tokens = tokens_of({}, batch, rank.rank);
      const at::Tensor logits = setup.model(tokens);
      graph = logits.grad_fn();
      loss_of(logits, tokens).backward({}, /*retain_graph=*/std::nullopt, /*create_graph=*/true);
    }
    EXPECT_TRUE(graph.expired());
  };
  run_ranks(2, train);
  run_ranks(2, train, /*as_on_a_device=*/true);
}

// As with PyTorch, which drops `.grad`: what has been issued is gone, whether it has arrived or
// not.
TEST(GradientsTest, ZeroGradInABackwardDropsTheReductionsInFlight) {
  run_ranks(2, [](Rank& rank) {
    Unit<InARow> model(std::make_shared<InARow>());
    Unit<InARow> plain(std::make_shared<InARow>());
    FullyShardOptions options;
    options.mesh = rank.mesh;
    fully_shard(model->first.ptr(), options);
    fully_shard(model->second.ptr(), options);
    const FSDPModule root = fully_shard(model.ptr(), options);
    AdamW optimizer(root, {});
    const auto backward = [](Unit<InARow>& any, double scale) {
      any(at::arange(12, at::kFloat).view({2, 6}) * scale).square().sum().backward();
    };
    for (const bool drops : {false, true, false}) {
      model->between = drops ? std::function<void()>([&] { optimizer.zero_grad(); }) : nullptr;
      plain->between = drops ? std::function<void()>([&] { plain->zero_grad(); }) : nullptr;
      backward(model, drops ? 3 : 1);
      backward(plain, drops ? 3 : 1);
      Gradients expected;
      for (const auto& param : plain->named_parameters()) {
        if (param.value().grad().defined()) {
          expected[param.key()] = param.value().grad().clone();
        }
      }
      EXPECT_EQ(expected.size(), drops ? 1u : 2u);
      expect_gradients(rank, root, expected);
    }
  });
}

class Gate {
 public:
  void open() {
    std::call_once(once_, [this] { opened_.set_value(); });
  }
  void await() { opened_.get_future().wait(); }

 private:
  std::once_flag once_;
  std::promise<void> opened_;
};

/// What it adds to a gradient is not there before somebody waits for it, or the gates are opened.
struct GatedCollectives : RecordingCollectives {
  struct GatedWork : Work {
    GatedWork(WorkPtr inner, std::shared_ptr<Gate> gate)
        : inner(std::move(inner)), gate(std::move(gate)) {}
    void wait() override {
      gate->open();
      inner->wait();
    }
    bool is_done() override { return inner->is_done(); }
    const WorkPtr inner;
    const std::shared_ptr<Gate> gate;
  };
  using RecordingCollectives::RecordingCollectives;
  WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    const std::shared_ptr<Gate> gate = gates.emplace_back(std::make_shared<Gate>());
    run_on_lane(issue.lane, [gate] { gate->await(); });
    return std::make_shared<GatedWork>(
        RecordingCollectives::reduce_scatter_onto(output, input, op, std::move(issue)), gate);
  }
  void open_all() {
    for (const std::shared_ptr<Gate>& gate : gates) {
      gate->open();
    }
  }
  std::vector<std::shared_ptr<Gate>> gates;
};

// What earlier backwards have given, with what is being added to it.
TEST(GradientsTest, GradientsReadInABackwardAreComplete) {
  run_ranks(2, [](Rank& rank) {
    const auto gated = std::make_shared<GatedCollectives>(rank.comm);
    ShardedInARow setup = shard_in_a_row(gated);
    const auto backward = [&] {
      setup.model(at::arange(12, at::kFloat).view({2, 6})).square().sum().backward();
    };
    const auto gradient_of_second = [&] {
      const std::vector<LocalShard> shards = setup.root.sharded_gradients();
      return shards.back().local.clone();
    };
    backward();
    const at::Tensor first = gradient_of_second();
    at::Tensor seen;
    setup.model->between = [&] {
      EXPECT_EQ(gated->gates.size(), 1u);
      seen = gradient_of_second();
      gated->open_all();
    };
    backward();
    gated->open_all();
    EXPECT_TRUE(at::equal(seen, first * 2));
  });
}

// What a reduction does besides communicating is done on its lane, beside compute.
TEST(GradientsTest, StagesOfAReductionRunOnItsLane) {
  struct Observed : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                Issue issue) override {
      EXPECT_EQ(issue.after != nullptr, !operations.empty());
      operations.push_back("reduce_scatter");
      return RecordingCollectives::reduce_scatter_into(output, input, op, issue);
    }
    WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
      EXPECT_EQ(issue.lane, Lane::kReduce);
      EXPECT_EQ(issue.after != nullptr, !operations.empty());
      operations.push_back("stage");
      return RecordingCollectives::run_on_lane(
          issue, [stage = std::move(stage), caller = std::this_thread::get_id()] {
            EXPECT_NE(std::this_thread::get_id(), caller);
            stage();
          });
    }
    WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                                Issue issue) override {
      operations.push_back("reduce_scatter that adds");
      return RecordingCollectives::reduce_scatter_onto(output, input, op, issue);
    }
    std::vector<std::string> operations;
  };
  run_ranks(2, [](Rank& rank) {
    const auto operations_of = [&rank](std::optional<at::ScalarType> reduce_dtype,
                                       std::optional<double> factor, int backwards) {
      const auto observed = std::make_shared<Observed>(rank.comm);
      FullyShardOptions options;
      options.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, observed);
      options.mp_policy.reduce_dtype = reduce_dtype;
      Unit<InARow> model(std::make_shared<InARow>());
      FSDPModule root = fully_shard(model.ptr(), options);
      if (factor) {
        root.set_gradient_divide_factor(*factor);
      }
      for (int i = 0; i < backwards; ++i) {
        observed->operations.clear();
        model(at::ones({2, 6})).sum().backward();
      }
      return observed->operations;
    };
    using Operations = std::vector<std::string>;
    EXPECT_EQ(operations_of({}, {}, 1), Operations{"reduce_scatter"});
    EXPECT_EQ(operations_of({}, {}, 2), Operations{"reduce_scatter that adds"});
    EXPECT_EQ(operations_of({}, 3, 2), (Operations{"reduce_scatter", "stage"}));  // divides first
    EXPECT_EQ(operations_of({}, 3, 1), (Operations{"reduce_scatter", "stage"}));  // divides
    EXPECT_EQ(operations_of(at::kDouble, {}, 1), (Operations{"reduce_scatter", "stage"}));  // casts
    EXPECT_EQ(operations_of(at::kHalf, 6, 1), (Operations{"stage", "reduce_scatter", "stage"}));
  });
}

}  // namespace
}  // namespace fsdp::testing
