// On one GPU: lanes that are late, whichever, do not change what is computed. The group's peers are
// stand-ins, because NCCL takes one rank for each GPU; streams, events and kernels are real.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
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
  if (!at::hasCUDA()) {
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

}  // namespace
}  // namespace fsdp::testing
