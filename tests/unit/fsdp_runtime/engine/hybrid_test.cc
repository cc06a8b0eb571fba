// Hybrid sharding: the ranks of a row divide the parameters, the rows hold copies.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

struct Shape {
  int64_t replicas;
  int64_t shards;
};
constexpr Shape kShapes[] = {{2, 2}, {2, 1}, {1, 2}, {3, 2}, {2, 3}};

TEST(HybridTest, GradientsAreThoseOfTrainingWithoutSharding) {
  for (const Shape& shape : kShapes) {
    for (const std::optional<double> factor : {std::optional<double>(), std::optional<double>(5)}) {
      run_ranks(shape.replicas * shape.shards, [&](Rank& rank) {
        Sharded setup = make_hybrid(rank, shape.replicas);
        for (FSDPModule unit : setup.root.units()) {
          if (factor) {
            unit.set_gradient_divide_factor(*factor);
          }
        }
        PlainTraining plain({}, rank.size, {});
        Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
        for (auto& [fqn, gradient] : expected) {
          gradient = factor ? gradient * (static_cast<double>(rank.size) / *factor) : gradient;
        }
        loss(setup.model, 0, rank.rank).backward();
        expect_in_every_row(rank, setup.root, expected, 1e-7);  // another order of the sum
      });
    }
  }
}

TEST(HybridTest, CopiesStayBitEqualAndMicrobatchesAddUp) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    AdamW optimizer(setup.root, {});
    PlainTraining plain({}, 4, {});
    for (int step = 0; step < 3; ++step) {
      Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, step, r); });
      for (const auto& [fqn, gradient] :
           plain.gradients([&](int64_t r) { return loss(plain.model, step + 9, r); })) {
        expected[fqn] = expected[fqn] + gradient;
      }
      plain.update(expected);
      loss(setup.model, step, rank.rank).backward();
      loss(setup.model, step + 9, rank.rank).backward();
      if (step == 0) {
        expect_in_every_row(rank, setup.root, expected, 2e-7);
      }
      clip_grad_norm_(setup.root, 1e9);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      const std::shared_ptr<Collectives>& copies = rank.mesh->group(0);
      at::Tensor all = at::empty({copies->size() * shard.local.numel()});
      copies->all_gather_into(all, shard.local.clone())->wait();
      for (const at::Tensor& copy : all.view({copies->size(), -1}).unbind()) {
        EXPECT_TRUE(at::equal(copy, shard.local)) << shard.fqn;
      }
      EXPECT_EQ(shard.mesh_axes, std::vector<std::string>{"dp_shard"});
    }
  });
}

TEST(HybridTest, RowsWithAndWithoutWindowsTrainTogether) {
  run_ranks(4, [](Rank& rank) {
    const std::shared_ptr<DeviceMesh> mesh = mesh_of(rank.comm, 2);
    std::shared_ptr<Collectives> row = mesh->group(1);
    if (rank.rank >= 2) {
      row = std::make_shared<GroupWithoutWindows>(row);
    }
    rank.mesh = std::make_shared<DeviceMesh>(c10::kCPU, mesh->shape(), mesh->axis_names(),
                                             std::vector{mesh->group(0), row});
    Sharded setup = make(rank, wide_toy());
    EXPECT_GT(mesh->group(1)->window_alignment(), 0);
    PlainTraining plain(wide_toy(), 4, {});
    const Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    expect_in_every_row(rank, setup.root, expected, 1e-5);  // a wide layer sums much
  });
}

TEST(HybridTest, MixedPrecisionReducesInTheDtypeOfThePolicy) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    run_ranks(4, [&](Rank& rank) {
      FullyShardOptions options;
      options.mp_policy.reduce_dtype = dtype;
      Sharded setup = make_hybrid(rank, 2, options);
      PlainTraining plain({}, 4, {});
      const Gradients expected =
          plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
      loss(setup.model, 0, rank.rank).backward();
      expect_in_every_row(rank, setup.root, expected, 1e-2);
    });
  }
}

// What one rank alone has used has a gradient on all of them.
TEST(HybridTest, UseOnAnyRankCounts) {
  for (int64_t user = 0; user < 4; ++user) {
    run_ranks(4, [&](Rank& rank) {
      Sharded setup = make_hybrid(rank, 2);
      PlainTraining plain({}, 4, {});
      setup.model->blocks[0]->use_spare = rank.rank == user;
      const Gradients expected = plain.gradients([&](int64_t r) {
        plain.model->blocks[0]->use_spare = r == user;
        return loss(plain.model, 0, r);
      });
      EXPECT_TRUE(expected.contains("block0.spare"));
      loss(setup.model, 0, rank.rank).backward();
      expect_in_every_row(rank, setup.root, expected, 1e-7);
    });
  }
}

TEST(HybridTest, EachUnitIsReducedInItsRowAndThenOverTheCopies) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    const auto row = std::dynamic_pointer_cast<RecordingCollectives>(rank.mesh->group(1));
    const auto copies = std::dynamic_pointer_cast<RecordingCollectives>(rank.mesh->group(0));
    ASSERT_TRUE(row && copies);
    row->clear();
    copies->clear();
    loss(setup.model, 0, rank.rank).backward();
    const auto count_in = [](const RecordingCollectives& comm, const std::string& operation) {
      return std::count_if(comm.records().begin(), comm.records().end(),
                           [&](const auto& record) { return record.operation == operation; });
    };
    EXPECT_EQ(count_in(*row, "reduce_scatter"), 4);
    EXPECT_EQ(count_in(*row, "all_reduce"), 0);
    EXPECT_EQ(count_in(*copies, "all_reduce"), 4);
    EXPECT_EQ(count_in(*copies, "reduce_scatter"), 0);
    EXPECT_EQ(count_in(*copies, "all_gather"), 0);
  });
}

// In the dtypes in which the sum of a row can and cannot be the gradient, with division before,
// behind and within the collectives.
TEST(HybridTest, MicrobatchesCanBeReducedInTheRowsAndOverTheCopiesOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kDouble}) {
    run_ranks(4, [&](Rank& rank) {
      FullyShardOptions options;
      options.mp_policy.reduce_dtype = dtype;
      Sharded setup = make_hybrid(rank, 2, options);
      const auto copies = std::dynamic_pointer_cast<RecordingCollectives>(rank.mesh->group(0));
      PlainTraining plain({}, 4, {});
      const auto add = [&](Gradients& sum, int64_t step) {
        for (const auto& [fqn, gradient] :
             plain.gradients([&](int64_t r) { return loss(plain.model, step, r); })) {
          sum[fqn] = sum.contains(fqn) ? sum[fqn] + gradient : gradient;
        }
      };
      const auto all_reduces = [&] {
        return std::count_if(copies->records().begin(), copies->records().end(),
                             [](const auto& record) { return record.operation == "all_reduce"; });
      };
      Gradients expected;
      for (int64_t step = 0; step < 6; ++step) {  // twice two in the row only, then over the copies
        const bool is_last = step % 3 == 2;
        setup.root.set_requires_all_reduce(is_last);
        copies->clear();
        loss(setup.model, step, rank.rank).backward();
        EXPECT_EQ(all_reduces(), is_last ? 4 : 0);
        add(expected, step);
        if (is_last) {
          expect_in_every_row(rank, setup.root, expected, dtype == at::kHalf ? 1e-2 : 1e-6);
        }
      }
    });
  }
}

// One rank alone needs no reduction, but for the hook.
TEST(HybridTest, HookMayChangeWhatTheCollectivesLeaveAndIsPutOffWithThem) {
  for (const Shape& shape : {Shape{2, 2}, Shape{1, 2}, Shape{1, 1}}) {
    run_ranks(shape.replicas * shape.shards, [&](Rank& rank) {
      Sharded setup = make_hybrid(rank, shape.replicas);
      std::atomic<int> calls{0};
      for (FSDPModule unit : setup.root.units()) {
        unit.set_gradient_divide_factor(static_cast<double>(2 * rank.size));
        unit.set_all_reduce_hook([&calls](at::Tensor gradient) {
          gradient.mul_(6);
          ++calls;
        });
      }
      PlainTraining plain({}, rank.size, {});
      Gradients expected;
      for (int64_t step = 0; step < 2; ++step) {
        setup.root.set_requires_all_reduce(step == 1);
        loss(setup.model, step, rank.rank).backward();
        for (const auto& [fqn, gradient] :
             plain.gradients([&](int64_t r) { return loss(plain.model, step, r); })) {
          expected[fqn] = step == 0 ? gradient * 3 : expected[fqn] + gradient * 3;
        }
      }
      EXPECT_EQ(calls, shape.replicas > 1 ? 4 : 8);
      expect_in_every_row(rank, setup.root, expected, 3e-6);
    });
  }
}

TEST(HybridTest, ZeroGradDropsTheSumsOfTheRows) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    PlainTraining plain({}, 4, {});
    setup.root.set_requires_all_reduce(false);
    loss(setup.model, 0, rank.rank).backward();
    for (const LocalShard& shard : setup.root.sharded_gradients()) {
      EXPECT_FALSE(shard.local.defined()) << shard.fqn;
    }
    AdamW(setup.root, {}).zero_grad();
    setup.root.set_requires_all_reduce(true);
    loss(setup.model, 1, rank.rank).backward();
    expect_in_every_row(rank, setup.root,
                        plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); }), 1e-7);
  });
}

TEST(HybridTest, MoreAxesAreRefusedWithTheWayOut) {
  run_ranks(2, [](Rank& rank) {
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    FullyShardOptions options;
    options.mesh = init_device_mesh(c10::kCPU, {1, 2, 1}, {"a", "b", "c"}, rank.comm);
    try {
      fully_shard(model.ptr(), options);
      FAIL() << "three axes were accepted";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("DeviceMesh::slice"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
