// A whole step captured as a CUDA graph: replayed it has the bits of a step that the host issues.

#include <c10/core/StreamGuard.h>
#include <fsdp/device_graph.h>

#include "tests/gpu/one_gpu.h"

namespace fsdp::gpu {
namespace {

constexpr int64_t kWarmUps = 4;
constexpr int64_t kReplays = 5;

class CudaGraphTest : public GpuTest {};

using MakeGroup = std::shared_ptr<Collectives> (*)();

std::shared_ptr<Collectives> one_rank_that_copies() {
  ProcessGroupOptions options = nccl_alone(std::chrono::minutes(1));
  options.communicates_alone = false;
  return init_process_group(options);
}

std::shared_ptr<Collectives> one_rank_with_nccl() { return make_nccl_alone(); }

std::shared_ptr<Collectives> two_ranks_with_nccl() {
  return std::make_shared<MirroredCollectives>(make_nccl_alone());
}

struct Trained {
  std::vector<at::Tensor> shards;
  std::vector<float> losses;  // of the steps behind the warm-ups
};

Trained train_eagerly(MakeGroup make_group, const MixedPrecisionPolicy& policy) {
  Training training(make_group(), policy);
  training.steps(0, kWarmUps - 1);
  Trained trained;
  for (int64_t step = kWarmUps; step < kWarmUps + kReplays; ++step) {
    trained.losses.push_back(training.step(training.tokens(step)).cpu().item<float>());
  }
  trained.shards = training.shards();
  return trained;
}

/// Not c10::cuda::CUDAStreamGuard, which calls CUDA's runtime from here: tests do not link that.
c10::Stream stream_of_its_own() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(kGpu);
}

/// Warms up and captures on a stream of its own, as PyTorch asks for.
Trained train_by_replays(MakeGroup make_group, const MixedPrecisionPolicy& policy) {
  Training training(make_group(), policy);
  const at::Tensor tokens = training.tokens(0).clone();
  const at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(kGpu));
  synchronize();
  const std::unique_ptr<DeviceGraph> graph = make_device_graph(kGpu);
  {
    const c10::StreamGuard guard(stream_of_its_own());
    training.steps(0, kWarmUps - 1);
    synchronize();
    graph->capture([&] { loss.copy_(training.step(tokens)); });
  }
  synchronize();
  Trained trained;
  for (int64_t step = kWarmUps; step < kWarmUps + kReplays; ++step) {
    tokens.copy_(training.tokens(step));
    graph->replay();
    trained.losses.push_back(loss.cpu().item<float>());
  }
  trained.shards = training.shards();
  return trained;
}

void expect_replays_are_steps(MakeGroup make_group, const MixedPrecisionPolicy& policy) {
  const Trained expected = train_eagerly(make_group, policy);
  const Trained replayed = train_by_replays(make_group, policy);
  EXPECT_EQ(replayed.losses, expected.losses);
  expect_equal(replayed.shards, expected.shards);
}

TEST_F(CudaGraphTest, AStepOfOneRank) { expect_replays_are_steps(one_rank_that_copies, {}); }

TEST_F(CudaGraphTest, AStepOfOneRankThatIsGatheredByNccl) {
  expect_replays_are_steps(one_rank_with_nccl, in_bfloat16());
}

TEST_F(CudaGraphTest, AStepOfTwoRanks) { expect_replays_are_steps(two_ranks_with_nccl, {}); }

TEST_F(CudaGraphTest, AStepOfTwoRanksInBFloat16) {
  expect_replays_are_steps(two_ranks_with_nccl, in_bfloat16());
}

}  // namespace
}  // namespace fsdp::gpu
