// What a training on a GPU settles into: the same addresses and no allocation, step after step.

#include <algorithm>
#include <map>

#include "tests/gpu/one_gpu.h"

namespace fsdp::gpu {
namespace {

// From this one on nothing changes any more: the order of units is known after the first forward,
// and prefetching takes its slots in the second.
constexpr int64_t kSettled = 3;
constexpr int64_t kSteps = 8;

class SteadyStateTest : public GpuTest {
 protected:
  static std::shared_ptr<Collectives> two_ranks() {
    return std::make_shared<MirroredCollectives>(make_nccl_alone());
  }
};

/// Where each block has found its weight in a step's forward.
std::vector<const void*> addresses_in_forward(Training& training, int64_t step) {
  std::vector<const void*> seen;
  for (const Unit<testing::ToyBlock>& block : training.model->blocks) {
    block->seen_at = &seen;
  }
  training.step(training.tokens(step));
  for (const Unit<testing::ToyBlock>& block : training.model->blocks) {
    block->seen_at = nullptr;
  }
  return seen;
}

TEST_F(SteadyStateTest, UnitsAreGatheredAtTheSameAddressesInEachStep) {
  for (const MixedPrecisionPolicy& policy : {MixedPrecisionPolicy{}, in_bfloat16()}) {
    Training training(two_ranks(), policy);
    training.steps(0, kSettled - 1);
    const std::vector<const void*> settled = addresses_in_forward(training, kSettled);
    ASSERT_EQ(settled.size(), training.model->blocks.size());
    for (int64_t step = kSettled + 1; step < kSteps; ++step) {
      EXPECT_EQ(addresses_in_forward(training, step), settled) << "step " << step;
    }
  }
}

TEST_F(SteadyStateTest, UnitsTakeTurnsInFewSlots) {
  Training training(two_ranks());
  training.steps(0, kSettled - 1);
  std::vector<const void*> seen = addresses_in_forward(training, kSettled);
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_LT(seen.size(), training.model->blocks.size());
}

TEST_F(SteadyStateTest, ShardsAndGradientsStayWhereTheyAre) {
  Training training(two_ranks(), in_bfloat16());
  const auto addresses = [&] {
    std::vector<const void*> all;
    const at::Tensor tokens = training.tokens(0);
    testing::loss_of(training.model(tokens), tokens).backward();
    for (const LocalShard& shard : training.root.sharded_parameters()) {
      all.push_back(shard.local.const_data_ptr());
    }
    for (const LocalShard& shard : training.root.sharded_gradients()) {
      all.push_back(shard.local.defined() ? shard.local.const_data_ptr() : nullptr);
    }
    training.optimizer->step();
    training.optimizer->zero_grad();
    return all;
  };
  training.steps(0, kSettled - 1);
  const std::vector<const void*> settled = addresses();
  EXPECT_EQ(addresses(), settled);
  EXPECT_EQ(addresses(), settled);
}

TEST_F(SteadyStateTest, NothingIsAllocatedFromTheDeviceAndNoSlotIsMade) {
  for (const MixedPrecisionPolicy& policy : {MixedPrecisionPolicy{}, in_bfloat16()}) {
    Training training(two_ranks(), policy);
    training.steps(0, kSettled - 1);
    synchronize();
    const auto settled = memory_stats();
    const int64_t slots = runtime_counters(training.root).slot_allocations;
    training.steps(kSettled, kSteps);
    synchronize();
    const auto now = memory_stats();
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    EXPECT_EQ(now.num_device_alloc, settled.num_device_alloc);
    EXPECT_EQ(now.num_device_free, settled.num_device_free);
    EXPECT_EQ(now.num_alloc_retries, settled.num_alloc_retries);
    EXPECT_EQ(now.reserved_bytes[kAll].current, settled.reserved_bytes[kAll].current);
    EXPECT_EQ(now.allocated_bytes[kAll].current, settled.allocated_bytes[kAll].current);
    EXPECT_EQ(runtime_counters(training.root).slot_allocations, slots);
  }
}

TEST_F(SteadyStateTest, EachStepAsksTheAllocatorForTheSameNumberOfBlocks) {
  Training training(two_ranks());
  training.steps(0, kSettled - 1);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  std::vector<int64_t> counts;
  for (int64_t step = kSettled; step < kSteps; ++step) {
    const int64_t before = memory_stats().allocation[kAll].allocated;
    training.steps(step, step);
    synchronize();
    counts.push_back(memory_stats().allocation[kAll].allocated - before);
  }
  EXPECT_EQ(counts, std::vector<int64_t>(counts.size(), counts.front()));
}

TEST_F(SteadyStateTest, AWholeParameterIsWhatItsShardHas) {
  Training training(make_nccl_alone());
  training.steps(0, 2);
  for (const LocalShard& shard : training.root.sharded_parameters()) {
    const at::Tensor whole = training.root.full_parameter(shard.fqn);
    EXPECT_TRUE(at::equal(whole.flatten(), shard.local)) << shard.fqn;
  }
}

TEST_F(SteadyStateTest, AParameterIsRefusedWhileItsUnitIsSharded) {
  Training training(two_ranks());
  training.steps(0, 1);
  const at::Tensor sharded = training.model->blocks.front()->up;
  try {
    (void)sharded.sum();
    ADD_FAILURE() << "a sharded parameter was read";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("parameter block0.up is sharded now"), std::string::npos) << text;
  }
  training.steps(2, 2);  // the device has not failed
  synchronize();
}

}  // namespace
}  // namespace fsdp::gpu
