// Steps of AdamW that fail.

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// Memory of LibTorch on the CPU, of which there is none in one size.
class AllocatorWithout : public c10::Allocator {
 public:
  explicit AllocatorWithout(size_t bytes) : bytes_(bytes) { c10::SetCPUAllocator(this, 1); }
  ~AllocatorWithout() override { c10::SetCPUAllocator(inner_, 1); }
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(bytes != bytes_, "no memory");
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const inner_ = c10::GetCPUAllocator();
  const size_t bytes_;
};

class AdamWTest : public ::testing::Test {
 protected:
  static Sharded sharded() {
    Rank rank;
    rank.mesh = init_device_mesh(c10::kCPU, {1}, {"dp_shard"},
                                 make_local_world(1, std::chrono::seconds(60))[0]);
    return make(rank);
  }
  /// What a step works with beside what there is, for each of its threads.
  static constexpr size_t kScratchBytes = size_t{32} * 1024 * sizeof(float);

  Sharded setup_ = sharded();
  AdamW optimizer_{setup_.root, {}};
};

TEST_F(AdamWTest, WhatAStepHasLeftHalfDoneIsNeitherCountedNorUsedUntilItIsLoadedAnew) {
  loss(setup_.model, 0, 0).backward();
  {
    const AllocatorWithout memory(kScratchBytes);
    EXPECT_THROW(optimizer_.step(), c10::Error);
  }
  EXPECT_THROW(optimizer_.step(), c10::Error);
  EXPECT_THROW(optimizer_.parameter_steps(), c10::Error);
  EXPECT_THROW(optimizer_.step_count(), c10::Error);
  optimizer_.zero_grad();
  loss(setup_.model, 0, 0).backward();
  EXPECT_THROW(optimizer_.step(), c10::Error) << "other gradients do not mend it";

  optimizer_.set_step_count(4);
  optimizer_.step();
  EXPECT_EQ(optimizer_.step_count(), 5);
  EXPECT_THAT(optimizer_.parameter_steps(), ::testing::Contains(5));
}

}  // namespace
}  // namespace fsdp::testing
