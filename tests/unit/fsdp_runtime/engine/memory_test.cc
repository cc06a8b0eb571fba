// The memory of training: what is allocated in each step, and that all of it together is what the
// plan says.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <ostream>
#include <string>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/planned_memory.h"
#include "tests/unit/fsdp_runtime/engine/counted_memory.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

constexpr int kSteps = 4;

struct MemoryCase {
  std::string name;
  bool has_windows = true;
  std::optional<at::ScalarType> compute = {};
  std::optional<at::ScalarType> reduce = {};
  int micro_batches = 1;
  bool reduces_each = true;  // gradients of each micro batch
  bool clips = false;
  int64_t replicas = 1;
  bool puts_off_all_reduce = false;  // until the last micro batch
  bool has_hooks = false;
  std::optional<double> divide_factor = {};
  std::optional<bool> reshard_after_forward = {};
};

std::ostream& operator<<(std::ostream& out, const MemoryCase& wanted) {
  return out << wanted.name << (wanted.has_windows ? ", windows" : "");
}

std::vector<MemoryCase> memory_cases() {
  std::vector<MemoryCase> all;
  for (const bool windows : {true, false}) {
    all.push_back({.name = "fp32", .has_windows = windows});
    all.push_back({.name = "fp32, clipped", .has_windows = windows, .clips = true});
    all.push_back({.name = "bf16", .has_windows = windows, .compute = at::kBFloat16});
    all.push_back({.name = "bf16 with sums in fp32",
                   .has_windows = windows,
                   .compute = at::kBFloat16,
                   .reduce = at::kFloat});
    all.push_back({.name = "two micro batches", .has_windows = windows, .micro_batches = 2});
    all.push_back({.name = "two micro batches, reduced once",
                   .has_windows = windows,
                   .micro_batches = 2,
                   .reduces_each = false});
    all.push_back({.name = "hybrid", .has_windows = windows, .clips = true, .replicas = 2});
    all.push_back({.name = "hybrid, bf16, the copies' sum put off",
                   .has_windows = windows,
                   .compute = at::kBFloat16,
                   .micro_batches = 2,
                   .replicas = 2,
                   .puts_off_all_reduce = true});
    all.push_back({.name = "kept between forward and backward",
                   .has_windows = windows,
                   .reshard_after_forward = false});
  }
  all.push_back({.name = "rows of one rank", .replicas = 4});
  all.push_back({.name = "hooks", .micro_batches = 2, .reduces_each = true, .has_hooks = true});
  all.push_back({.name = "a factor", .micro_batches = 2, .reduces_each = true, .divide_factor = 3});
  return all;
}

constexpr int64_t kRanks = 4;
constexpr int64_t kScalarBytes = 64;  // of all of them on a rank

/// Training of the toy on all ranks, whose memory is counted.
class CountedTraining {
 public:
  /// `groups`: counts the memory that groups give.
  CountedTraining(const MemoryCase& wanted, std::shared_ptr<MemoryCount> groups)
      : case_(wanted), groups_(std::move(groups)) {}

  /// Called by rank 0, while all ranks wait, before the passes of each step and behind them.
  struct Look {
    std::function<void()> before = [] {};
    std::function<void(int step, const FSDPModule& root)> behind;
  };
  void train(Rank& rank, const Look& look) const {
    const auto world = std::make_shared<CountedGroup>(rank.comm, case_.has_windows, groups_);
    rank.mesh = case_.replicas > 1 ? mesh_of(world, case_.replicas)
                                   : init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, world);
    ToyConfig config = wide_toy();
    config.unmaterialized = true;
    FullyShardOptions options;
    options.reshard_after_forward = case_.reshard_after_forward;
    options.mp_policy.param_dtype = case_.compute;
    options.mp_policy.reduce_dtype = case_.reduce;
    Sharded setup = make(rank, config, options);
    for (FSDPModule unit : setup.root.units()) {
      if (case_.has_hooks) {
        unit.set_all_reduce_hook([](at::Tensor) {});
      }
      if (case_.divide_factor) {
        unit.set_gradient_divide_factor(*case_.divide_factor);
      }
    }
    AdamW optimizer(setup.root, {});
    for (int step = 0; step < kSteps; ++step) {
      on_rank_0(rank, look.before);
      pass(rank, setup, step);
      on_rank_0(rank, [&] { look.behind(step, setup.root); });
      optimizer.step();
      optimizer.zero_grad();
    }
  }

 private:
  static void on_rank_0(const Rank& rank, const std::function<void()>& action) {
    rank.comm->barrier();
    if (rank.rank == 0) {
      action();
    }
    rank.comm->barrier();
  }

  void pass(const Rank& rank, Sharded& setup, int step) const {
    for (int part = 0; part < case_.micro_batches; ++part) {
      const bool is_last = part + 1 == case_.micro_batches;
      setup.root.set_requires_gradient_sync(is_last || case_.reduces_each);
      setup.root.set_requires_all_reduce(is_last || !case_.puts_off_all_reduce);
      loss(setup.model, step + part, rank.rank).backward();
    }
    if (case_.clips) {
      clip_grad_norm_(setup.root, 1e-3);
    }
  }

  const MemoryCase case_;
  const std::shared_ptr<MemoryCount> groups_;
};

/// What the same micro batches allocate without the engine, with parameters in `dtype`.
std::vector<int64_t> sizes_of_plain_step(const MemoryCase& wanted, int step, MemoryCount& count,
                                         int64_t least) {
  const Unit<ToyModel> model = make_plain(wide_toy());
  model->to(wanted.compute.value_or(at::kFloat));
  count.begin_noting();
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    for (int part = 0; part < wanted.micro_batches; ++part) {
      loss(model, step + part, rank).backward();
      model->zero_grad();
    }
  }
  return count.end_noting(least);
}

int64_t smallest_shard_bytes(const FSDPModule& root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      const auto element = std::min(c10::elementSize(group->unsharded().dtype()),
                                    c10::elementSize(group->reducer().dtype()));
      least = std::min(least, group->store().layout().shard_numel * static_cast<int64_t>(element));
    }
  }
  return least;
}

TEST(MemoryTest, FromTheThirdStepOnNothingIsAllocatedForCommunication) {
  for (const MemoryCase& wanted : memory_cases()) {
    const auto tensors = std::make_shared<MemoryCount>();
    const auto groups = std::make_shared<MemoryCount>();
    const CountingAllocator counting(tensors);
    int64_t slots = 0;
    int64_t least = 0;
    std::vector<int64_t> sharded;
    const CountedTraining run(wanted, groups);
    run_ranks(kRanks, [&](Rank& rank) {
      const auto before = [&] {
        tensors->begin_noting();
        groups->begin_noting();
      };
      const auto behind = [&](int step, const FSDPModule& root) {
        least = smallest_shard_bytes(root);
        sharded = tensors->end_noting(least);
        const std::vector<int64_t> of_groups = groups->end_noting(0);
        if (step == 1) {
          slots = runtime_counters(root).slot_allocations;
        } else if (step > 1) {
          EXPECT_EQ(runtime_counters(root).slot_allocations, slots) << wanted << ", step " << step;
          EXPECT_TRUE(of_groups.empty()) << wanted << ", step " << step;
        }
      };
      run.train(rank, {before, behind});
    });
    const std::vector<int64_t> plain = sizes_of_plain_step(wanted, kSteps - 1, *tensors, least);
    std::vector<int64_t> more;
    std::set_difference(sharded.begin(), sharded.end(), plain.begin(), plain.end(),
                        std::back_inserter(more));
    EXPECT_FALSE(plain.empty());
    EXPECT_TRUE(more.empty()) << wanted << ": beside what the plain model allocates, of " << least
                              << " bytes and more: " << ::testing::PrintToString(more);
  }
}

TEST(MemoryTest, TrainingTakesWhatThePlanSays) {
  for (const MemoryCase& wanted : memory_cases()) {
    if (!wanted.reduces_each) {
      continue;  // the plan has no unsharded gradients between micro batches
    }
    const auto tensors = std::make_shared<MemoryCount>();
    const auto groups = std::make_shared<MemoryCount>();
    const CountingAllocator counting(tensors);
    const TrainingMode mode{.adds_gradients = wanted.micro_batches > 1,
                            .puts_off_all_reduce = wanted.puts_off_all_reduce};
    const CountedTraining run(wanted, groups);
    run_ranks(kRanks, [&](Rank& rank) {
      const auto compare = [&](int step, const FSDPModule& root) {
        const plan::MemoryPlan plan = planned_memory(root, mode);
        EXPECT_EQ(runtime_counters(root).slot_bytes,
                  plan.parameter_slot_bytes + plan.gradient_slot_bytes)
            << wanted << ", step " << step;
        // The plan leaves out the optimizer's rate and step counts, which are a few scalars.
        const int64_t beyond = tensors->live() + groups->live() - kRanks * plan.peak_bytes();
        EXPECT_GE(beyond, 0) << wanted << ", step " << step;
        EXPECT_LT(beyond, kRanks * kScalarBytes) << wanted << ", step " << step;
      };
      run.train(rank, {.behind = compare});
    });
  }
}

// What one rank of two may have by PyTorch's test of memory, in bytes of float32, computed by hand:
// five blocks with two matrices of 1024 x 64, a bias and 15 elements, and a root of 511 x 64 + 64.
constexpr int64_t kLargestBytes = 4 * (2 * 1024 * 64 + 1024 + 15);
constexpr int64_t kRootBytes = 4 * (511 * 64 + 64);
constexpr int64_t kWholeBytes = 5 * kLargestBytes + kRootBytes;
constexpr int64_t kShardedBytes = kWholeBytes / 2;
constexpr int64_t kPaddingBytes = 64 << 10;  // and scalars; an eighth of a block

/// What rank 0 has seen, in bytes of each rank; slots are those of the arenas.
struct MemorySeen {
  int64_t at_init = 0;
  int64_t slots_in_forward = 0;
  int64_t slots_in_backward = 0;
  // Without the slots, which stay for the next step.
  int64_t in_backward = 0;
  int64_t behind_step = 0;
  int64_t behind_zero_grad = 0;
};

MemorySeen seen_memory(bool reshards_after_forward) {
  const auto tensors = std::make_shared<MemoryCount>();
  const auto groups = std::make_shared<MemoryCount>();
  const CountingAllocator counting(tensors);
  MemorySeen seen;
  run_ranks(2, [&](Rank& rank) {
    const auto world = std::make_shared<CountedGroup>(rank.comm, /*has_windows=*/false, groups);
    rank.mesh = init_device_mesh(c10::kCPU, {2}, {"dp_shard"}, world);
    ToyConfig config = wide_toy();
    config.blocks = 5;
    config.unmaterialized = true;
    Sharded setup = make(rank, config, {.reshard_after_forward = reshards_after_forward});
    const auto slots = [&] { return runtime_counters(setup.root).slot_bytes; };
    const auto look = [&](int64_t& noted, const auto& now) {
      rank.comm->barrier();
      if (rank.rank == 0) {
        noted = std::max(noted, now());
      }
      rank.comm->barrier();
    };
    const auto live = [&] { return (tensors->live() + groups->live()) / 2 - slots(); };
    look(seen.at_init, live);
    std::optional<AdamW> optimizer;
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor result = loss(setup.model, step, rank.rank);
      if (step == 0) {
        look(seen.slots_in_forward, slots);
      }
      result.backward();
      result.reset();
      look(seen.slots_in_backward, slots);
      if (!optimizer) {
        look(seen.in_backward, live);
        optimizer.emplace(setup.root, AdamWOptions{});
      }
      optimizer->step();
      look(seen.behind_step, live);
      optimizer->zero_grad();
      look(seen.behind_zero_grad, live);
    }
  });
  return seen;
}

TEST(MemoryTest, TrainingIsWithinBoundsByHand) {
  for (const bool reshards : {true, false}) {
    const MemorySeen seen = seen_memory(reshards);
    // Two blocks at a time; PyTorch's test allows three.
    const int64_t gathered = reshards ? 2 * kLargestBytes + kRootBytes : kWholeBytes;
    EXPECT_LE(seen.at_init, kShardedBytes + kLargestBytes);
    EXPECT_LE(seen.slots_in_forward, gathered + kPaddingBytes) << "reshards " << reshards;
    EXPECT_GE(seen.slots_in_forward, kLargestBytes + kRootBytes) << "else not all is counted";
    // And as much of gradients, which PyTorch's test does not allow: a slot is there to be written
    // while the other one is reduced.
    EXPECT_LE(seen.slots_in_backward, gathered + 2 * kLargestBytes + kRootBytes + kPaddingBytes)
        << "reshards " << reshards;
    EXPECT_LE(seen.in_backward, 2 * kShardedBytes + kPaddingBytes);
    EXPECT_LE(seen.behind_step, 4 * kShardedBytes + kPaddingBytes);
    // The gradients' memory is kept for the next step; PyTorch's is gone, and is three then.
    EXPECT_LE(seen.behind_zero_grad, 4 * kShardedBytes + kPaddingBytes);
    EXPECT_GE(seen.behind_zero_grad, 3 * kShardedBytes) << "else not all is counted";
  }
}

}  // namespace
}  // namespace fsdp::testing
