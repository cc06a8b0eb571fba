// The stages of a reduction with hybrid sharding: what they wait for, what becomes of them when one
// fails, and what ranks tell each other at the end.

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/src/comm/store_agreement.h"
#include "fsdp_runtime/store/store_client.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

// More units than there are slots for unsharded gradients of their size.
TEST(HybridReductionTest, NoUnitWaitsForTheAllReduceOfAnother) {
  struct Watched : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    struct Seen : Work {
      Seen(WorkPtr inner, std::vector<std::string>& log) : inner(std::move(inner)), log(log) {}
      void wait() override {
        log.emplace_back("wait");
        inner->wait();
      }
      bool is_done() override { return inner->is_done(); }
      WorkPtr inner;
      std::vector<std::string>& log;
    };
    WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
      log.emplace_back("all_reduce");
      return std::make_shared<Seen>(RecordingCollectives::all_reduce(tensor, op, issue), log);
    }
    std::vector<std::string> log;
  };
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid_on<Watched>(rank, 2);
    loss(setup.model, 0, rank.rank).backward();
    std::vector<std::string> expected(4, "all_reduce");
    expected.insert(expected.end(), 4, "wait");
    EXPECT_EQ(group_on<Watched>(rank, 0).log, expected);
  });
}

// The only lane is that of the copies, and what is reduced is where backward has put it.
TEST(HybridReductionTest, RowOfOneRankIsReducedOnTheLaneOfTheCopies) {
  struct Watched : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
      EXPECT_GT(size(), 1);
      ++stages;
      return RecordingCollectives::run_on_lane(
          issue, [stage = std::move(stage), caller = std::this_thread::get_id()] {
            EXPECT_NE(std::this_thread::get_id(), caller);
            stage();
          });
    }
    int stages = 0;
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    run_ranks(2, [&](Rank& rank) {
      FullyShardOptions options;
      options.mp_policy.reduce_dtype = dtype;
      Sharded setup = make_hybrid_on<Watched>(rank, 2, options);
      PlainTraining plain({}, 2, {});
      Gradients expected;
      for (const int64_t step : {0, 1, 2}) {
        setup.root.set_requires_all_reduce(step != 1);
        loss(setup.model, step, rank.rank).backward();
        add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, step, r); });
      }
      EXPECT_TRUE(group_on<Watched>(rank, 1).records().empty());
      expect_in_every_row(rank, setup.root, expected, dtype == at::kHalf ? 1e-2 : 1e-6);
      EXPECT_GE(group_on<Watched>(rank, 0).stages, 3 * 4);
    });
  }
}

TEST(HybridReductionTest, UnitsThatTheLastMicrobatchLeavesOutAreReducedWithIt) {
  for (const bool keeps_row : {true, false}) {
    run_ranks(4, [&](Rank& rank) {
      Sharded setup = make_hybrid(rank, 2);
      PlainTraining plain({}, 4, {});
      const auto reduce = [&](bool all) {
        keeps_row ? setup.root.set_requires_all_reduce(all)
                  : setup.root.set_requires_gradient_sync(all);
      };
      for (const int64_t step : {0, 2}) {  // the second finds nothing of the first
        Gradients expected;
        const auto add = [&](int64_t of_step, int64_t skipped) {
          plain.model->skipped = skipped;
          add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, of_step, r); });
          setup.model->skipped = skipped;
          loss(setup.model, of_step, rank.rank).backward();
        };
        reduce(false);
        add(step, -1);
        reduce(true);
        add(step + 1, 1);
        EXPECT_TRUE(expected.contains("block1.up"));
        expect_in_every_row(rank, setup.root, expected, 2e-7);
        AdamW(setup.root, {}).zero_grad();
      }
    });
  }
}

TEST(HybridReductionTest, RowsExchangeNothingUntilTheAllReduce) {
  struct Counted : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    WorkPtr mark(Issue issue) override {
      ++marks;
      return RecordingCollectives::mark(issue);
    }
    AgreementPtr agree(uint64_t value, std::string purpose) override {
      ++agreements;
      return RecordingCollectives::agree(value, purpose);
    }
    int marks = 0;
    int agreements = 0;
  };
  for (int64_t user = 0; user < 4; ++user) {
    run_ranks(4, [&](Rank& rank) {
      Sharded setup = make_hybrid_on<Counted>(rank, 2);
      Counted& copies = group_on<Counted>(rank, 0);
      Counted& row = group_on<Counted>(rank, 1);
      PlainTraining plain({}, 4, {});
      Gradients expected;
      const auto train = [&](int64_t step, bool all_reduces) {
        const int64_t spare_user = all_reduces ? -1 : user;  // what it has used is not forgotten
        setup.model->blocks[0]->use_spare = rank.rank == spare_user;
        setup.root.set_requires_all_reduce(all_reduces);
        loss(setup.model, step, rank.rank).backward();
        add_gradients(expected, plain, [&](int64_t r) {
          plain.model->blocks[0]->use_spare = r == spare_user;
          return loss(plain.model, step, r);
        });
      };
      train(0, false);
      EXPECT_TRUE(copies.records().empty());
      EXPECT_EQ(copies.agreements + copies.marks, 0);
      EXPECT_EQ(row.agreements, 1);
      train(1, true);
      EXPECT_EQ(copies.agreements, 1);
      EXPECT_EQ(row.agreements, 2);
      EXPECT_TRUE(expected.contains("block0.spare"));
      expect_in_every_row(rank, setup.root, expected, 2e-7);
    });
  }
}

TEST(HybridReductionTest, DivideFactorSetWhileRowsKeepSumsHoldsFromTheNextSumOn) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    run_ranks(4, [&](Rank& rank) {
      FullyShardOptions options;
      options.mp_policy.reduce_dtype = dtype;
      Sharded setup = make_hybrid(rank, 2, options);
      PlainTraining plain({}, 4, {});
      const double bound = dtype == at::kHalf ? 1e-2 : 1e-6;
      Gradients expected;
      for (const int64_t step : {0, 1}) {
        setup.root.set_requires_all_reduce(step == 1);
        loss(setup.model, step, rank.rank).backward();
        add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, step, r); });
        for (FSDPModule unit : setup.root.units()) {
          unit.set_gradient_divide_factor(1);
        }
      }
      expect_in_every_row(rank, setup.root, expected, bound);
      AdamW(setup.root, {}).zero_grad();
      loss(setup.model, 2, rank.rank).backward();
      expected = plain.gradients([&](int64_t r) { return 4 * loss(plain.model, 2, r); });
      expect_in_every_row(rank, setup.root, expected, bound);
    });
  }
}

TEST(HybridReductionTest, HookThatThrowsCostsItsUnitTheGradientAndNothingElse) {
  for (const int64_t replicas : {1, 2}) {
    run_ranks(4, [&](Rank& rank) {
      Sharded setup = make_hybrid(rank, replicas);
      PlainTraining plain({}, 4, {});
      std::atomic<bool> throws{rank.rank == 3};
      setup.root.set_all_reduce_hook([&throws](at::Tensor) { TORCH_CHECK(!throws, "no quorum"); });
      const std::string error = error_of([&] { loss(setup.model, 0, rank.rank).backward(); });
      EXPECT_THAT(error, HasSubstr(rank.rank == 3 ? "no quorum" : "no error"));
      for (const LocalShard& shard : setup.root.sharded_gradients()) {
        if (shard.fqn == "embedding" || shard.fqn == "gain") {
          EXPECT_EQ(shard.local.defined(), rank.rank != 3) << shard.fqn;
        } else if (shard.fqn != "block0.spare") {
          EXPECT_EQ(shard.local.defined(), !shard.fqn.ends_with("spare")) << shard.fqn;
        }
      }
      throws = false;
      AdamW(setup.root, {}).zero_grad();
      loss(setup.model, 1, rank.rank).backward();
      expect_in_every_row(rank, setup.root,
                          plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); }),
                          1e-7);
    });
  }
}

// More units than slots, so that some reductions finish in the middle of backward.
TEST(HybridReductionTest, HookThatThrowsOnOneRankTakesTheSumOfItsRowAlong) {
  run_ranks(4, [](Rank& rank) {
    rank.mesh = mesh_of(rank.comm, 2);
    const ToyConfig config{.blocks = 6};
    FullyShardOptions options;
    options.mp_policy.reduce_dtype = at::kBFloat16;
    Sharded setup = make(rank, config, options);
    PlainTraining plain(config, 4, {});
    std::atomic<bool> throws{rank.rank == 3};
    std::atomic<int> calls{0};
    for (FSDPModule unit : setup.root.units()) {
      unit.set_all_reduce_hook([&](at::Tensor) {
        ++calls;
        TORCH_CHECK(!throws, "no quorum");
      });
    }
    setup.root.set_requires_all_reduce(false);
    loss(setup.model, 0, rank.rank).backward();
    setup.root.set_requires_all_reduce(true);
    const std::string error = error_of([&] { loss(setup.model, 1, rank.rank).backward(); });
    EXPECT_THAT(error, HasSubstr(rank.rank == 3 ? "no quorum" : "no error"));
    EXPECT_EQ(calls, 7);
    AdamW(setup.root, {}).zero_grad();
    for (FSDPModule unit : setup.root.units()) {
      unit.set_all_reduce_hook({});
    }
    loss(setup.model, 2, rank.rank).backward();
    EXPECT_EQ(calls, 7);
    expect_in_every_row(rank, setup.root,
                        plain.gradients([&](int64_t r) { return loss(plain.model, 2, r); }), 1e-2);
  });
}

TEST(HybridReductionTest, HookRunsWithoutGradModeAndLeavesThePaddingZero) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    std::atomic<bool> has_grad_mode{false};
    for (FSDPModule unit : setup.root.units()) {
      unit.set_all_reduce_hook([&](at::Tensor gradient) {
        has_grad_mode = has_grad_mode || at::GradMode::is_enabled();
        gradient.add_(1);
      });
    }
    for (const Unit<ToyBlock>& block : setup.model->blocks) {
      block->use_spare = true;
    }
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_FALSE(has_grad_mode);
    at::Tensor square_sum = at::zeros({1}, at::kDouble);
    for (const LocalShard& shard : setup.root.sharded_gradients()) {
      square_sum += shard.local.to(at::kDouble).square().sum();
    }
    rank.mesh->group(1)->all_reduce(square_sum, ReduceOp::kSum)->wait();
    EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), std::sqrt(square_sum.item<double>()),
                1e-3);
  });
}

// What has been issued before keeps its memory, and the reduction its reason.
TEST(HybridReductionTest, StageThatCannotBeIssuedFailsTheReduction) {
  struct Refusing : RecordingCollectives {
    using RecordingCollectives::RecordingCollectives;
    WorkPtr all_reduce(at::Tensor, ReduceOp, Issue) override {
      TORCH_CHECK(false, "the communicator is gone");
    }
  };
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid_on<Refusing>(rank, 2);
    EXPECT_THAT(error_of([&] { loss(setup.model, 0, rank.rank).backward(); }),
                HasSubstr("the communicator is gone"));
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THAT(error_of([&] { loss(setup.model, 0, rank.rank); }),
                  HasSubstr("the communicator is gone"));
    }
  });
}

/// Shards the blocks on `blocks` and the rest on `rest`.
Sharded make_mixed(const std::shared_ptr<DeviceMesh>& blocks,
                   const std::shared_ptr<DeviceMesh>& rest) {
  FullyShardOptions options;
  Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
  options.mesh = blocks;
  for (const Unit<ToyBlock>& block : model->blocks) {
    fully_shard(block.ptr(), options);
  }
  options.mesh = rest;
  const FSDPModule root = fully_shard(model.ptr(), options);
  Sharded setup{model, root};
  setup.root.init_parameters(initialise);
  return setup;
}

TEST(HybridReductionTest, ClippingCountsCopiesOnceIfOtherUnitsAreOnAllRanks) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_mixed(mesh_of(rank.comm, 2), rank.mesh);
    PlainTraining plain({}, 4, {});
    double square_sum = 0;
    for (const auto& [fqn, gradient] :
         plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); })) {
      square_sum += gradient.to(at::kDouble).square().sum().item<double>();
    }
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), std::sqrt(square_sum), 1e-6);
  });
}

// As with NCCL: a group has one question at a time. One of the axes has the rows or the copies of
// the blocks, and the rows of the root.
TEST(HybridReductionTest, GroupsThatUnitsShareAreAskedOneQuestionAtATime) {
  struct ThroughStore : RecordingCollectives {
    ThroughStore(std::shared_ptr<Collectives> inner, int port)
        : RecordingCollectives(std::move(inner)), port(port) {}
    std::shared_ptr<Collectives> split(int64_t color) override {
      return agree_through_store(
          RecordingCollectives::split(color),
          std::make_shared<StoreClient>("127.0.0.1", port, std::chrono::seconds(60)),
          "part" + std::to_string(splits++) + "/" + std::to_string(color));
    }
    int port;
    int splits = 0;
  };
  for (const std::string root_axis : {"dp_shard", "dp_replicate"}) {
    const auto store = serve_store();
    run_ranks(4, [&](Rank& rank) {
      const auto mesh = mesh_of(std::make_shared<ThroughStore>(rank.comm, store->getPort()), 2);
      Sharded setup = make_mixed(mesh, mesh->slice({root_axis}));
      for (int64_t step = 0; step < 2; ++step) {
        setup.model->blocks[0]->use_spare = rank.rank == step;
        loss(setup.model, step, rank.rank).backward();
        for (const LocalShard& shard : setup.root.sharded_gradients()) {
          const bool is_used = !shard.fqn.ends_with("spare") || shard.fqn == "block0.spare";
          EXPECT_EQ(shard.local.defined(), is_used) << shard.fqn;
        }
        AdamW(setup.root, {}).zero_grad();
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::testing
