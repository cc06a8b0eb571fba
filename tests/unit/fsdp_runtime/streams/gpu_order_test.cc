// On one GPU: lanes that are late, whichever, do not change what is computed, nor does it that
// activations are offloaded. The group's peers are stand-ins, because NCCL takes one rank for each
// GPU; streams, events, kernels and copies are real.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/offload_activations.h>
#include <fsdp/process_group.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/fsdp_runtime/engine/delayed_collectives.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"
#include "tests/unit/fsdp_runtime/streams/peerless_collectives.h"

namespace fsdp::testing {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

void wait_for_all_streams() {
  c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(kGpu.index());
}

/// Keeps the current stream busy for longer than all that compute does in the meantime.
std::function<void()> busy_stream() {
  const at::Tensor matrix = at::zeros({2048, 2048}, at::TensorOptions().device(kGpu));
  const at::Tensor result = at::zeros_like(matrix);
  return [matrix, result] {
    for (int i = 0; i < 20; ++i) {
      at::Tensor out = result;
      at::mm_out(out, matrix, matrix);
    }
  };
}

/// Trains with `lane` late; without one, with every stream waited for before each use of it.
std::vector<at::Tensor> trained(std::optional<Lane> lane) {
  const auto inner = std::make_shared<PeerlessCollectives>(2, kGpu, kGpu);
  Rank rank;
  if (lane) {
    rank.comm = std::make_shared<DelayedCollectives>(inner, *lane, busy_stream());
  } else {
    rank.comm = std::make_shared<RecordingCollectives>(inner);
    inner->after_launch = wait_for_all_streams;
  }
  rank.mesh = init_device_mesh(c10::kCUDA, {2}, {"dp_shard"}, rank.comm);
  Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{.blocks = 5}));
  model->to(kGpu);
  for (const Unit<ToyBlock>& block : model->blocks) {
    fully_shard(block.ptr(), {rank.mesh, {}, {}});
  }
  FSDPModule root = fully_shard(model.ptr(), {rank.mesh, {}, {}});
  root.init_parameters(initialise);
  AdamW optimizer(root, {});
  for (int64_t step = 0; step < 5; ++step) {
    const at::Tensor tokens = tokens_of(model->config, step, 0).to(kGpu);
    loss_of(model(tokens), tokens).backward();
    clip_grad_norm_(root, 0.01);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> shards;
  for (const LocalShard& shard : root.sharded_parameters()) {
    shards.push_back(shard.local.cpu());
  }
  return shards;
}

TEST(GpuOrderTest, TrainingIsTheSameWhicheverLaneIsLate) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "needs a GPU";
  }
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const std::vector<at::Tensor> expected = trained(std::nullopt);
  for (const Lane lane : {Lane::kGather, Lane::kReduce}) {
    const std::vector<at::Tensor> actual = trained(lane);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(actual[i], expected[i])) << "parameter " << i;
    }
  }
}

constexpr int64_t kNumel = 1 << 20;
constexpr int kLayers = 12;

struct Passes {
  at::Tensor gradient;
  int64_t peak = 0;  // of what is allocated on the GPU, in tensors of kNumel elements, rounded down
};

/// Through layers each of which saves its input.
Passes passes(const std::optional<OffloadActivations::Options>& options) {
  const at::Tensor leaf = at::arange(kNumel, at::kFloat).div(kNumel).to(kGpu);
  leaf.set_requires_grad(true);
  c10::DeviceAllocator* const memory = c10::getDeviceAllocator(kGpu.type());
  const auto allocated = [memory] {
    return memory->getDeviceStats(kGpu.index())
        .allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  };
  memory->resetPeakStats(kGpu.index());
  const int64_t before = allocated().current;
  at::Tensor loss = leaf;
  {
    std::optional<OffloadActivations> offload;
    if (options) {
      offload.emplace(*options);
    }
    for (int i = 0; i < kLayers; ++i) {
      loss = loss.sin();
    }
    loss = loss.sum();
  }
  loss.backward();
  const int64_t tensor = kNumel * static_cast<int64_t>(leaf.element_size());
  return {leaf.grad().cpu(), (allocated().peak - before) / tensor};
}

TEST(GpuOrderTest, ActivationsComeBackFromTheCpuAndLeaveTheirMemory) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "needs a GPU";
  }
  const Passes expected = passes(std::nullopt);
  EXPECT_GE(expected.peak, kLayers);
  for (const bool pin_memory : {true, false}) {
    const Passes found =
        passes(OffloadActivations::Options{.min_bytes = 0, .pin_memory = pin_memory});
    EXPECT_TRUE(at::equal(found.gradient, expected.gradient)) << "pinned " << pin_memory;
    EXPECT_LT(found.peak, kLayers / 2 + 2) << "pinned " << pin_memory;
  }
  const Passes all_stay = passes(OffloadActivations::Options{.min_bytes = 8 * kNumel});
  EXPECT_TRUE(at::equal(all_stay.gradient, expected.gradient));
  EXPECT_EQ(all_stay.peak, expected.peak);
}

}  // namespace
}  // namespace fsdp::testing
