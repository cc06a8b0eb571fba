#pragma once

// What the tests of one GPU share.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/counters.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/mirrored_collectives.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::gpu {

inline const c10::Device kGpu(c10::kCUDA, 0);

/// Skipped where there is no GPU. Asking for one loads LibTorch's CUDA libraries.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "needs a GPU";
    }
    at::globalContext().lazyInitDevice(c10::kCUDA);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
};

/// Blocks the host until the device has nothing to do.
inline void synchronize() { c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(0); }

/// The counters of LibTorch's allocator on the device.
inline c10::CachingDeviceAllocator::DeviceStats memory_stats() {
  return c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(0);
}

/// Computes in bfloat16 and reduces in float32: units are gathered at one rank as well.
inline MixedPrecisionPolicy in_bfloat16() {
  MixedPrecisionPolicy policy;
  policy.param_dtype = at::kBFloat16;
  policy.reduce_dtype = at::kFloat;
  return policy;
}

/// Options of a world of one whose operations are NCCL's.
inline ProcessGroupOptions nccl_alone(std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.backend = "nccl";
  options.device_type = c10::kCUDA;
  options.timeout = timeout;
  options.communicates_alone = true;
  return options;
}

inline std::shared_ptr<Collectives> make_nccl_alone(
    std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  return init_process_group(nccl_alone(timeout));
}

/// A language model in small that is trained on the GPU.
struct Training {
  /// `group`: over whose ranks the units are sharded.
  explicit Training(std::shared_ptr<Collectives> group, const MixedPrecisionPolicy& policy = {})
      : comm(std::make_shared<RecordingCollectives>(std::move(group))) {
    FullyShardOptions options;
    options.mesh = init_device_mesh(c10::kCUDA, {comm->size()}, {"dp_shard"}, comm);
    options.mp_policy = policy;
    model->to(kGpu);
    for (const Unit<testing::ToyBlock>& block : model->blocks) {
      fully_shard(block.ptr(), options);
    }
    root = fully_shard(model.ptr(), options);
    root.init_parameters(testing::initialise);
    optimizer.emplace(root, AdamWOptions{.lr = 1e-2});
  }

  /// Of the step, on the GPU: int64 [batch, length].
  at::Tensor tokens(int64_t step) const {
    return testing::tokens_of(model->config, step, 0).to(kGpu);
  }
  /// Forward, backward and update. Does not block the host. Returns the loss, on the GPU.
  at::Tensor step(const at::Tensor& tokens) {
    const at::Tensor loss = testing::loss_of(model(tokens), tokens);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    return loss.detach();
  }
  void steps(int64_t first, int64_t last) {
    for (int64_t number = first; number <= last; ++number) {
      step(tokens(number));
    }
  }
  /// The shards as they are now, on the CPU. Blocks the host.
  std::vector<at::Tensor> shards() const {
    synchronize();
    std::vector<at::Tensor> copies;
    for (const LocalShard& shard : root.sharded_parameters()) {
      copies.push_back(shard.local.cpu());
    }
    return copies;
  }

  std::shared_ptr<RecordingCollectives> comm;
  Unit<testing::ToyModel> model{
      std::make_shared<testing::ToyModel>(testing::ToyConfig{.blocks = 5})};
  FSDPModule root;
  std::optional<AdamW> optimizer;
};

inline void expect_equal(const std::vector<at::Tensor>& actual,
                         const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << "parameter " << i;
  }
}

}  // namespace fsdp::gpu
