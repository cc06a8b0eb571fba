// A whole step captured as a CUDA graph: replayed it has the bits of a step that the host issues.

#include <c10/core/StreamGuard.h>
#include <fsdp/device_graph.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

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

/// A step's loss, which stays where it is.
struct Captured {
  explicit Captured(Training& training)
      : tokens(training.tokens(0).clone()),
        step([this, &training] { loss.copy_(training.step(tokens)); }) {}
  float replay(const Training& training, int64_t number, DeviceGraph& graph) const {
    tokens.copy_(training.tokens(number));
    graph.replay();
    return loss.cpu().item<float>();
  }
  const at::Tensor tokens;
  const at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(kGpu));
  const std::function<void()> step;
};

// What comes between replays, and a second capture: a run is as one without graphs.
TEST_F(CudaGraphTest, StepsThatAreIssuedBetweenReplays) {
  const auto train = [](bool as_graphs) {
    Training training(one_rank_with_nccl(), in_bfloat16());
    const Captured captured(training);
    synchronize();
    const c10::StreamGuard guard(stream_of_its_own());
    const std::unique_ptr<DeviceGraph> graph = make_device_graph(kGpu);
    training.steps(0, kWarmUps - 1);
    std::vector<float> losses;
    for (int64_t step = kWarmUps; step < kWarmUps + 8; ++step) {
      const bool is_issued = step % 3 == 0;
      if (as_graphs && !is_issued) {
        if (step == kWarmUps || step == kWarmUps + 4) {
          graph->capture(captured.step);
        }
        losses.push_back(captured.replay(training, step, *graph));
      } else {
        losses.push_back(training.step(training.tokens(step)).cpu().item<float>());
      }
    }
    return std::make_pair(losses, training.shards());
  };
  const auto graphs = train(true);
  const auto issued = train(false);
  EXPECT_EQ(graphs.first, issued.first);
  expect_equal(graphs.second, issued.second);
}

// Whatever ends a capture, steps go on as if there had been none, and the group ends in time.
TEST_F(CudaGraphTest, StepsBehindCapturesThatHaveFailed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto train = [](bool as_graphs) {
    Training training(one_rank_with_nccl(), in_bfloat16());
    const Captured captured(training);
    synchronize();
    const c10::StreamGuard guard(stream_of_its_own());
    training.steps(0, kWarmUps - 1);
    if (as_graphs) {
      const std::unique_ptr<DeviceGraph> graph = make_device_graph(kGpu);
      // In the middle of a forward, and by a wait that CUDA refuses.
      EXPECT_ANY_THROW(graph->capture([&] {
        training.model->blocks[2]->fail = true;
        training.step(captured.tokens);
      }));
      training.model->blocks[2]->fail = false;
      EXPECT_ANY_THROW(graph->capture([&] { captured.loss.item<float>(); }));
      c10::getDeviceAllocator(c10::kCUDA)->emptyCache();
      synchronize();
    }
    training.steps(kWarmUps, kWarmUps + 3);
    return training.shards();
  };
  expect_equal(train(true), train(false));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace fsdp::gpu
