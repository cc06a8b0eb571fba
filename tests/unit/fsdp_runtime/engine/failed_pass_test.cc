// What a forward, a backward or a reduction that fails leaves behind.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "fsdp_runtime/src/comm/watched_window.h"
#include "tests/unit/fsdp_runtime/engine/in_a_row.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(FailedPassTest, ForwardThatThrowsLeavesTheModelUsable) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (int step = 0; step < 2; ++step) {
      loss(setup.model, 1, rank.rank).backward();
      setup.model->blocks[1]->fail = true;
      EXPECT_THROW(loss(setup.model, 0, rank.rank), c10::Error);
      setup.model->blocks[1]->fail = false;
      AdamW(setup.root, {}).zero_grad();
    }
    loss(setup.model, 0, rank.rank).backward();
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

TEST(FailedPassTest, BackwardThatThrowsLeavesTheModelUsable) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.checkpointing = ToyConfig::Checkpointing::kAroundUnit;
    Sharded setup = make(rank, config);
    PlainTraining plain(config, 2, {});
    for (int step = 0; step < 2; ++step) {
      at::Tensor failing = loss(setup.model, 0, rank.rank);
      setup.model->blocks[1]->fail = true;  // the recomputation of block 1 throws
      EXPECT_THROW(failing.backward(), c10::Error);
      setup.model->blocks[1]->fail = false;
    }
    AdamW(setup.root, {}).zero_grad();
    at::Tensor result = loss(setup.model, 0, rank.rank);
    AdamW(setup.root, {}).zero_grad();  // the failed backward's reductions count until dropped
    result.backward();
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

// No forward comes between the backward that fails and the next one.
TEST(FailedPassTest, BackwardAfterAFailedOneIsComplete) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    at::Tensor kept = loss(setup.model, 0, rank.rank);
    {
      const at::Tensor tokens = tokens_of({}, 1, rank.rank);
      const at::Tensor logits = setup.model(tokens);
      // Fails right after the root's backward has begun.
      logits.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "told to fail"); });
      EXPECT_THROW(loss_of(logits, tokens).backward(), c10::Error);
    }
    kept.backward();
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
    EXPECT_EQ(runtime_counters(setup.root).reductions, 4);
  });
}

// One rank gives up a micro batch before anything of it has been added up; no collective is in it.
TEST(FailedPassTest, FailedBackwardKeepsEarlierMicrobatches) {
  const auto train = [](Rank& rank) {
    Sharded setup =
        make(rank, {}, {.mesh = nullptr, .reshard_after_forward = false, .mp_policy = {}});
    setup.root.set_reshard_after_backward(false);
    setup.root.set_requires_gradient_sync(false);
    const int64_t failing = rank.size - 1;
    loss(setup.model, 0, rank.rank).backward();
    const at::Tensor tokens = tokens_of({}, 1, rank.rank);
    const at::Tensor logits = setup.model(tokens);
    if (rank.rank == failing) {
      logits.register_hook([](const at::Tensor&) { TORCH_CHECK(false, "told to fail"); });
      EXPECT_THROW(loss_of(logits, tokens).backward(), c10::Error);
    } else {
      loss_of(logits, tokens).backward();
    }
    setup.root.set_requires_gradient_sync(true);
    loss(setup.model, 2, rank.rank).backward();
    PlainTraining plain({}, rank.size, {});
    expect_gradients(rank, setup.root, plain.gradients([&](int64_t r) {
      const at::Tensor kept = loss(plain.model, 0, r) + loss(plain.model, 2, r);
      return r == failing ? kept : kept + loss(plain.model, 1, r);
    }),
                     2e-7);
  };
  for (const int64_t ranks : {1, 2}) {
    run_ranks(ranks, train);
    run_ranks(ranks, train, /*as_on_a_device=*/true);
  }
}

// What a failed backward has added up is there as in PyTorch's .grad, and goes with it.
TEST(FailedPassTest, ZeroGradDropsWhatAFailedBackwardLeft) {
  for (const bool syncs : {false, true}) {
    const auto train = [&](Rank& rank) {
      ToyConfig config;
      config.checkpointing = ToyConfig::Checkpointing::kAroundUnit;
      Sharded setup = make(rank, config);
      PlainTraining plain(config, 2, {});
      AdamW optimizer(setup.root, {});
      setup.root.set_requires_gradient_sync(syncs);
      at::Tensor failing = loss(setup.model, 0, rank.rank);
      setup.model->blocks[1]->fail = true;  // the recomputation of block 1 throws
      EXPECT_THROW(failing.backward(), c10::Error);
      setup.model->blocks[1]->fail = false;
      optimizer.zero_grad();
      for (const LocalShard& slice : setup.root.sharded_gradients()) {
        EXPECT_FALSE(slice.local.defined()) << slice.fqn;
      }
      setup.root.set_requires_gradient_sync(true);
      loss(setup.model, 1, rank.rank).backward();
      expect_gradients(rank, setup.root,
                       plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); }));
    };
    run_ranks(2, train);
    run_ranks(2, train, /*as_on_a_device=*/true);
  }
}

TEST(FailedPassTest, UnitWithoutMemoryForItsGradientsHasNoPartInTheNextBackward) {
  struct Full : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
      TORCH_CHECK(!is_full, "no memory");
      return RecordingCollectives::empty_for_comm(numel, dtype);
    }
    bool is_full = false;
  };
  run_ranks(2, [](Rank& rank) {
    const auto comm = std::make_shared<Full>(rank.comm);
    ShardedInARow setup = shard_in_a_row(comm);
    comm->is_full = true;
    EXPECT_THROW(setup.model(at::ones({2, 6})).sum().backward(), c10::Error);
    comm->is_full = false;
    rank.comm->clear();
    setup.model->first(at::ones({2, 6})).sum().backward();
    EXPECT_EQ(count(rank, "reduce_scatter"), 1);
  });
}

// Its parameters are nobody's any more, whatever they still say: a use would be a crash.
TEST(FailedPassTest, UnitWhoseUseCannotBeEndedIsNotTakenForGathered) {
  struct Stuck : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    struct Window : WatchedWindow {
      using WatchedWindow::WatchedWindow;
      void release() override { TORCH_CHECK(false, "told to fail"); }
    };
    std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                     std::string purpose) override {
      return std::make_shared<Window>(
          RecordingCollectives::make_gather_window(numel, dtype, purpose),
          [](GatherWindow& inner, Issue issue) { return inner.issue(std::move(issue)); });
    }
  };
  run_ranks(2, [](Rank& rank) {
    rank.mesh =
        init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, std::make_shared<Stuck>(rank.comm));
    Sharded setup = make(rank, wide_toy());
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THROW(loss(setup.model, 0, rank.rank), c10::Error);
    }
  });
}

// Its slot is free for the next attempt.
TEST(FailedPassTest, GatherThatCannotBeIssuedKeepsNoMemory) {
  struct Refusing : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
      TORCH_CHECK(!refuses, "told to fail");
      return RecordingCollectives::all_gather_into(output, input, std::move(issue));
    }
    bool refuses = false;
  };
  run_ranks(2, [](Rank& rank) {
    const auto comm = std::make_shared<Refusing>(rank.comm);
    ShardedInARow setup = shard_in_a_row(comm);
    const FSDPModule unit = fsdp_module(*setup.model->first);
    comm->refuses = true;
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THROW(unit.unshard(), c10::Error);
    }
    comm->refuses = false;
    unit.unshard();
    EXPECT_EQ(runtime_counters(setup.root).slot_allocations, 1);
  });
}

// The error of a failed reduction is thrown again by every later call.
TEST(FailedPassTest, FailedReductionKeepsItsReason) {
  struct LostPeer : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    struct Lost : Work {
      bool is_done() override { return true; }
      void wait() override { TORCH_CHECK(false, "rank 1 died"); }
    };
    WorkPtr run_on_lane(Issue, std::function<void()>) override { return std::make_shared<Lost>(); }
  };
  const auto world = make_local_world(1);
  Rank rank;
  rank.mesh =
      init_device_mesh(c10::kCPU, {1}, {"dp_shard"}, std::make_shared<LostPeer>(world.front()));
  FullyShardOptions options;
  options.mp_policy.param_dtype = at::kBFloat16;  // or a world of one would not reduce
  Sharded setup = make(rank, {}, options);
  const auto error_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_NE(error_of([&] { loss(setup.model, 0, 0).backward(); }).find("rank 1 died"),
            std::string::npos);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_NE(error_of([&] { loss(setup.model, 0, 0); }).find("rank 1 died"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp::testing
