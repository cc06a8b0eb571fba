#include <ATen/ATen.h>
#include <fsdp/device_graph.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp {
namespace {

using testing::ToyConfig;
using testing::ToyModel;

TEST(DeviceGraphTest, OnTheCpuAReplayDoesTheWork) {
  const std::unique_ptr<DeviceGraph> graph = make_device_graph(c10::kCPU);
  at::Tensor sum = at::zeros({});
  at::Tensor next = at::zeros({});
  graph->capture([&] { sum.add_(next); });
  EXPECT_EQ(sum.item<float>(), 0);
  for (const float value : {1.0F, 20.0F}) {
    next.fill_(value);
    graph->replay();
  }
  EXPECT_EQ(sum.item<float>(), 21);
  graph->capture([&] { sum.zero_(); });
  graph->replay();
  EXPECT_EQ(sum.item<float>(), 0);
}

TEST(DeviceGraphTest, WithoutACaptureThereIsNothingToReplay) {
  EXPECT_THROW(make_device_graph(c10::kCPU)->replay(), c10::Error);
}

TEST(DeviceGraphTest, DevicesWithoutGraphsAreRefused) {
  EXPECT_THROW(make_device_graph(c10::kMeta), c10::Error);
}

// A program that is written for graphs trains the same without them.
TEST(DeviceGraphTest, AWholeStepHasTheBitsOfOneThatIsNotCaptured) {
  const auto train = [](bool is_captured) {
    ProcessGroupOptions options;
    options.backend = "shm";
    FullyShardOptions sharding;
    sharding.mesh = init_device_mesh(c10::kCPU, {1}, {"dp_shard"}, init_process_group(options));
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig()));
    for (const Unit<testing::ToyBlock>& block : model->blocks) {
      fully_shard(block.ptr(), sharding);
    }
    const FSDPModule root = fully_shard(model.ptr(), sharding);
    root.init_parameters(testing::initialise);
    AdamW optimizer(root, {.lr = 1e-2});
    const at::Tensor tokens = testing::tokens_of(model->config, 0, 0);
    at::Tensor loss = at::zeros({});
    const auto step = [&] {
      const at::Tensor value = testing::loss_of(model(tokens), tokens);
      value.backward();
      optimizer.step();
      optimizer.zero_grad();
      loss.copy_(value.detach());
    };
    const std::unique_ptr<DeviceGraph> graph = make_device_graph(c10::kCPU);
    if (is_captured) {
      graph->capture(step);
    }
    std::vector<float> losses;
    for (int64_t number = 0; number < 4; ++number) {
      tokens.copy_(testing::tokens_of(model->config, number, 0));
      optimizer.set_lr(1e-2 / static_cast<double>(number + 1));
      is_captured ? graph->replay() : step();
      losses.push_back(loss.item<float>());
    }
    return losses;
  };
  EXPECT_EQ(train(true), train(false));
}

}  // namespace
}  // namespace fsdp
