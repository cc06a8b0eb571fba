// What a backward does with gradients, as it is set: when they are waited for, how they are summed,
// and that one without gradients of parameters reduces nothing.

#include <fsdp/counters.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/engine/in_a_row.h"

namespace fsdp::testing {
namespace {

TEST(LastBackwardTest, GradientsOfAllMicroBatchesAreThereBehindTheLast) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    Gradients expected;
    for (int step = 0; step < 2; ++step) {  // what is set for one step does not stay behind
      expected.clear();
      for (int64_t batch = 0; batch < 3; ++batch) {
        setup.root.set_is_last_backward(batch == 2);
        loss(setup.model, batch, rank.rank).backward();
        add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, batch, r); });
      }
      EXPECT_EQ(count(rank, "reduce_scatter"), 4 * 3 * (step + 1));
      expect_gradients(rank, setup.root, expected, 1e-6);  // of another order of sums
      AdamW(setup.root, {}).zero_grad();
    }
  });
}

/// Waits for it are counted, by thread.
class CountedWork : public Work {
 public:
  CountedWork(WorkPtr work, std::atomic<int>& waits, std::thread::id of)
      : work_(std::move(work)), waits_(waits), of_(of) {}
  void wait() override {
    waits_ += std::this_thread::get_id() == of_ ? 1 : 0;
    work_->wait();
  }
  bool is_done() override { return work_->is_done(); }

 private:
  WorkPtr work_;
  std::atomic<int>& waits_;
  const std::thread::id of_;
};

/// The work of reductions is counted as such; it outlives neither the test nor its counter.
class CountedReductions : public RecordingCollectives {
 public:
  CountedReductions(std::shared_ptr<Collectives> inner, std::atomic<int>& waits)
      : RecordingCollectives(std::move(inner)), waits_(waits) {}
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    return std::make_shared<CountedWork>(
        RecordingCollectives::reduce_scatter_into(output, input, op, std::move(issue)), waits_,
        std::this_thread::get_id());
  }
  bool has_reduce_scatter_onto(at::ScalarType) const override { return false; }

 private:
  std::atomic<int>& waits_;
};

TEST(LastBackwardTest, NoOtherWaitsForItsReductions) {
  run_ranks(2, [](Rank& rank) {
    std::atomic<int> waits = 0;
    const auto group = std::make_shared<CountedReductions>(rank.comm, waits);
    ShardedInARow setup = shard_in_a_row(group);
    const at::Tensor x = at::ones({2, 6});
    setup.root.set_is_last_backward(false);
    setup.model(x).sum().backward();
    EXPECT_EQ(waits, 0);
    setup.root.set_is_last_backward(true);
    setup.model(x).sum().backward();
    EXPECT_GE(waits, 2);
  });
}

TEST(InputsOnlyBackwardTest, ReducesNothingAndLeavesUnitsSharded) {
  run_ranks(2, [](Rank& rank) {
    ShardedInARow setup = shard_in_a_row(rank.comm);
    const at::Tensor x = at::ones({2, 6}).requires_grad_();
    for (int step = 0; step < 2; ++step) {
      rank.comm->clear();
      const at::Tensor result = setup.model(x);
      const auto gradients = torch::autograd::grad({result.sum()}, {x});
      EXPECT_TRUE(at::equal(gradients.at(0), at::full({2, 6}, 0.25)));
      EXPECT_EQ(count(rank, "reduce_scatter"), 0);
      EXPECT_EQ(count(rank, "all_gather"), 2 + 2);
      EXPECT_THROW(setup.model->first->weight.detach().sum(), c10::Error);
      EXPECT_THROW(setup.model->second->weight.detach().sum(), c10::Error);
      EXPECT_FALSE(setup.root.sharded_gradients()[0].local.defined());
    }
    setup.model(x).sum().backward();
    EXPECT_EQ(count(rank, "reduce_scatter"), 2);
    EXPECT_TRUE(setup.root.sharded_gradients()[0].local.defined());
  });
}

TEST(InputsOnlyBackwardTest, GradientsThatTheCallerTakesAreNotReduced) {
  run_ranks(2, [](Rank& rank) {
    ShardedInARow setup = shard_in_a_row(rank.comm);
    const at::Tensor weight = setup.model->second->weight;
    const at::Tensor result = setup.model(at::ones({2, 6}));
    const auto gradients = torch::autograd::grad({result.sum()}, {weight});
    EXPECT_TRUE(at::equal(gradients.at(0), at::full({6, 6}, 1.0)));
    EXPECT_EQ(count(rank, "reduce_scatter"), 0);
  });
}

TEST(InputsOnlyBackwardTest, OnlyUnitsWhoseParametersAreInputsAreReduced) {
  run_ranks(2, [](Rank& rank) {
    ShardedInARow setup = shard_in_a_row(rank.comm);
    const at::Tensor weight = setup.model->second->weight;
    setup.model(at::ones({2, 6}))
        .sum()
        .backward({}, /*retain_graph=*/false,
                  /*create_graph=*/false, std::vector<at::Tensor>{weight});
    EXPECT_EQ(count(rank, "reduce_scatter"), 1);
    const std::vector<LocalShard> gradients = setup.root.sharded_gradients();
    EXPECT_FALSE(gradients[0].local.defined());
    EXPECT_TRUE(gradients[1].local.defined());
  });
}

// Else a generator's pass through a discriminator would spend what the discriminator has kept.
TEST(InputsOnlyBackwardTest, KeepsTheSumsOfRowsForLater) {
  run_ranks(4, [](Rank& rank) {
    rank.mesh = mesh_of(rank.comm, 2);
    Unit<InARow> model(std::make_shared<InARow>());
    fully_shard(model->first.ptr(), {.mesh = rank.mesh});
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    const at::Tensor x = at::ones({2, 6}).requires_grad_();
    root.set_requires_all_reduce(false);
    model(x).sum().backward();
    root.set_requires_all_reduce(true);
    const int64_t before = runtime_counters(root).reductions;
    torch::autograd::grad({model(x).sum()}, {x});
    EXPECT_EQ(runtime_counters(root).reductions, before);
    EXPECT_FALSE(root.sharded_gradients()[0].local.defined());
    model(x).sum().backward();
    const LocalShard gradient = root.sharded_gradients()[0];
    EXPECT_TRUE(at::equal(gradient.local, at::full(gradient.local.sizes(), 2 * 1.0)));
  });
}

/// Of one micro batch.
struct Counts {
  int64_t gathers = 0;
  int64_t reductions = 0;
  int64_t all_reductions = 0;
  bool operator==(const Counts&) const = default;
};

void PrintTo(const Counts& counts, std::ostream* out) {
  *out << counts.gathers << " gathers, " << counts.reductions << " reduce-scatters, "
       << counts.all_reductions << " all-reduces";
}

/// Three micro batches, for each of which `put_off` says whether something is put off: for the
/// first two.
std::vector<Counts> accumulate(Rank& rank, const Sharded& setup,
                               const std::function<void(const FSDPModule&, bool)>& put_off) {
  std::vector<Counts> counts;
  const bool is_hybrid = rank.mesh->ndim() == 2;
  auto& row = dynamic_cast<RecordingCollectives&>(*rank.mesh->group(is_hybrid ? 1 : 0));
  const auto number = [](const RecordingCollectives& group, const std::string& operation) {
    const auto& records = group.records();
    return std::count_if(records.begin(), records.end(), [&](const CollectiveRecord& record) {
      return record.operation == operation && record.numel > 14;  // not those of the uses
    });
  };
  for (int64_t batch = 0; batch < 3; ++batch) {
    put_off(setup.root, batch < 2);
    row.clear();
    if (is_hybrid) {
      dynamic_cast<RecordingCollectives&>(*rank.mesh->group(0)).clear();
    }
    loss(setup.model, batch, rank.rank).backward();
    counts.push_back({number(row, "all_gather"), number(row, "reduce_scatter"), 0});
    if (is_hybrid) {
      counts.back().all_reductions =
          number(dynamic_cast<RecordingCollectives&>(*rank.mesh->group(0)), "all_reduce");
    }
  }
  return counts;
}

TEST(AccumulationTest, OnlyWhatIsNotPutOffIsReduced) {
  struct Mode {
    std::function<void(const FSDPModule&, bool)> put_off;
    int64_t early_reductions;
  };
  const std::vector<Mode> modes = {
      {[](const FSDPModule& root, bool is_off) { root.set_requires_gradient_sync(!is_off); }, 0},
      {[](const FSDPModule& root, bool is_off) {
         root.set_requires_gradient_sync(!is_off, /*recurse=*/false);
       },
       3},
      {[](const FSDPModule& root, bool is_off) {
         root.units()[0].set_requires_gradient_sync(!is_off, /*recurse=*/false);
         root.units()[2].set_requires_gradient_sync(!is_off, /*recurse=*/false);
       },
       2}};
  for (const Mode& mode : modes) {
    run_ranks(2, [&mode](Rank& rank) {
      Sharded setup = make(rank);
      PlainTraining plain({}, 2, {});
      const Counts early{7, mode.early_reductions};
      EXPECT_EQ(accumulate(rank, setup, mode.put_off), (std::vector<Counts>{early, early, {7, 4}}));
      Gradients expected;
      for (int64_t batch = 0; batch < 3; ++batch) {
        add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, batch, r); });
      }
      expect_gradients(rank, setup.root, expected, 1e-6);
    });
  }
}

TEST(AccumulationTest, ParametersThatStayGatheredAreGatheredOnce) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto put_off = [](const FSDPModule& root, bool is_off) {
      root.set_requires_gradient_sync(!is_off);
      root.set_reshard_after_backward(!is_off);
    };
    EXPECT_EQ(accumulate(rank, setup, put_off), (std::vector<Counts>{{7, 0}, {3, 0}, {3, 4}}));
    Sharded kept = make(rank, {}, {.reshard_after_forward = false});
    EXPECT_EQ(accumulate(rank, kept, put_off), (std::vector<Counts>{{4, 0}, {0, 0}, {0, 4}}));
  });
}

TEST(AccumulationTest, CopiesReduceInTheirRowsUntilTheLast) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    const auto put_off = [](const FSDPModule& root, bool is_off) {
      root.set_requires_all_reduce(!is_off);
    };
    EXPECT_EQ(accumulate(rank, setup, put_off),
              (std::vector<Counts>{{7, 4, 0}, {7, 4, 0}, {7, 4, 4}}));
  });
}

/// Records the operations of reductions.
class Operations : public RecordingCollectives {
 public:
  using RecordingCollectives::RecordingCollectives;
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    seen.push_back(op);
    return RecordingCollectives::reduce_scatter_into(output, input, op, std::move(issue));
  }
  WorkPtr reduce_scatter_onto(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    seen.push_back(op);
    return RecordingCollectives::reduce_scatter_onto(output, input, op, std::move(issue));
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    if (op != ReduceOp::kMax) {  // that of the uses
      seen.push_back(op);
    }
    return RecordingCollectives::all_reduce(tensor, op, std::move(issue));
  }
  std::vector<ReduceOp> seen;
};

bool are_all(const std::vector<ReduceOp>& seen, ReduceOp op) {
  return !seen.empty() &&
         std::all_of(seen.begin(), seen.end(), [op](ReduceOp one) { return one == op; });
}

TEST(ForceSumTest, AllReductionsAreSumsWithTheSameResult) {
  for (const auto& [replicas, ranks] : {std::pair<int64_t, int64_t>{1, 2}, {2, 4}, {3, 3}}) {
    run_ranks(ranks, [&, replicas = replicas](Rank& rank) {
      Sharded setup = make_hybrid_on<Operations>(rank, replicas);
      PlainTraining plain({}, rank.size, {});
      for (const FSDPModule& unit : setup.root.units()) {
        unit.set_force_sum_reduction_for_comms(true);
      }
      Gradients expected;
      for (int64_t batch = 0; batch < 2; ++batch) {
        loss(setup.model, batch, rank.rank).backward();
        add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, batch, r); });
      }
      expect_in_every_row(rank, setup.root, expected, 1e-6);  // another order of the sum
      for (int64_t axis = 0; axis < 2; ++axis) {
        if (rank.mesh->size(axis) > 1) {
          EXPECT_TRUE(are_all(group_on<Operations>(rank, axis).seen, ReduceOp::kSum));
        }
      }
    });
  }
}

TEST(ForceSumTest, IsOneUnitsAndCanBeTakenBack) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make_hybrid_on<Operations>(rank, 1);
    std::vector<ReduceOp>& seen = group_on<Operations>(rank, 1).seen;
    setup.root.set_force_sum_reduction_for_comms(true);
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), ReduceOp::kSum), 1);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), ReduceOp::kAvg), 3);
    setup.root.set_force_sum_reduction_for_comms(false);
    seen.clear();
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(are_all(seen, ReduceOp::kAvg));
  });
}

}  // namespace
}  // namespace fsdp::testing
