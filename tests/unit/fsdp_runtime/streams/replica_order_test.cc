// The waits between streams that DistributedDataParallel and its hooks rely on, on a fake device.

#include <fsdp/ddp_comm_hooks.h>
#include <fsdp/distributed_data_parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/fake_collectives.h"
#include "tests/unit/fsdp_runtime/streams/fake_device.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kComputeStream = 0;
constexpr int64_t kReduceStream = 2;  // of the first group

/// Layers of two buckets or more; the gradient of the first one fails, if it is told to.
struct LayerStack : torch::nn::Module {
  LayerStack() {
    bias = register_parameter("bias", at::zeros({8}));
    for (int64_t i = 0; i < 4; ++i) {
      const at::Tensor weight = at::arange(64, at::kFloat).add(i).sin().mul(0.3).view({8, 8});
      layers.push_back(register_parameter("layer" + std::to_string(i), weight));
    }
    mean = register_buffer("mean", at::zeros({8}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::linear(x, layers[0], bias);
    y.register_hook([this](const at::Tensor&) { TORCH_CHECK(!fails, "told to fail"); });
    for (size_t i = 1; i < layers.size(); ++i) {
      y = at::linear(y.tanh(), layers[i]);
    }
    mean.copy_(y.detach().mean(0));
    return y;
  }
  bool fails = false;
  std::vector<at::Tensor> layers;
  at::Tensor bias, mean;
};

struct ReplicaCase {
  std::string name;
  CommHook (*hook)() = nullptr;
  bool uses_differ = false;  // so that ranks exchange them
};

void PrintTo(const ReplicaCase& test_case, std::ostream* out) { *out << test_case.name; }

DistributedDataParallel<LayerStack> replica_of(const ReplicaCase& test_case) {
  const auto group = std::make_shared<FakeCollectives>(2);
  group->is_unanimous = !test_case.uses_differ;
  DistributedDataParallel ddp(std::make_shared<LayerStack>(),
                              {.process_group = group,
                               .bucket_cap_mb = 3e-4,
                               .find_unused_parameters = test_case.uses_differ});
  if (test_case.hook != nullptr) {
    ddp.register_comm_hook(test_case.hook());
  }
  return ddp;
}

void replica_step(const DistributedDataParallel<LayerStack>& ddp) {
  FakeDevice& device = FakeDevice::get();
  device.set_phase("forward");
  const at::Tensor loss = ddp(at::ones({3, 8})).square().mean();
  device.set_phase("backward");
  loss.backward();
  device.set_phase("the optimizer");
  const at::NoGradGuard no_grad;
  for (at::Tensor param : ddp->parameters()) {
    param.sub_(param.grad(), 0.1);
  }
  ddp->zero_grad();
}

void train_replica(const ReplicaCase& test_case) {
  const DistributedDataParallel<LayerStack> ddp = replica_of(test_case);
  EXPECT_GT(ddp.buckets().size(), 1u);
  for (int step = 0; step < 4; ++step) {
    replica_step(ddp);
  }
  for (const at::Tensor& param : ddp->parameters()) {
    EXPECT_TRUE(param.isfinite().all().item<bool>());
  }
  FakeDevice::get().set_phase("destruction");
}

std::vector<ReplicaCase> replica_cases() {
  return {{.name = "mean"},
          {.name = "uses_differ", .uses_differ = true},
          {.name = "allreduce_hook", .hook = [] { return allreduce_hook(); }},
          {.name = "fp16", .hook = [] { return fp16_compress_hook(); }},
          {.name = "bf16", .hook = [] { return bf16_compress_hook(); }},
          {.name = "powerSGD", .hook = [] { return powerSGD_hook({.start_powerSGD_iter = 2}); }}};
}

class ReplicaOrderTest : public ::testing::TestWithParam<ReplicaCase> {
 protected:
  void SetUp() override { device_.start(); }
  void TearDown() override { device_.stop(); }
  void start_without_waits_of(int64_t waiting, int64_t awaited) {
    device_.stop();
    device_.start();
    device_.leave_out_waits([=](const FakeDevice::Wait& wait) {
      return wait.waiting == waiting && wait.awaited == awaited;
    });
  }
  FakeDevice& device_ = FakeDevice::get();
};

TEST_P(ReplicaOrderTest, TrainingHasNoRacesUnlessAWaitIsLeftOut) {
  train_replica(GetParam());
  EXPECT_EQ(device_.text_of_races(), "");
  start_without_waits_of(kComputeStream, kReduceStream);
  train_replica(GetParam());
  EXPECT_NE(device_.text_of_races().find("of compute in the optimizer is not ordered behind"),
            std::string::npos);
  start_without_waits_of(kReduceStream, kComputeStream);
  train_replica(GetParam());
  EXPECT_NE(device_.text_of_races().find("on a reduce lane in backward is not ordered behind"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Cases, ReplicaOrderTest, ::testing::ValuesIn(replica_cases()),
                         [](const auto& info) { return info.param.name; });

void fail_and_destroy(const ReplicaCase& test_case) {
  const DistributedDataParallel<LayerStack> ddp = replica_of(test_case);
  replica_step(ddp);
  ddp->fails = true;
  FakeDevice::get().set_phase("backward");
  const at::Tensor loss = ddp(at::ones({3, 8})).square().mean();
  EXPECT_THROW(loss.backward(), c10::Error);
  FakeDevice::get().set_phase("destruction");
}

class FailedReplicaOrderTest : public ReplicaOrderTest {};

TEST_P(FailedReplicaOrderTest, MemoryOutlivesTheReductionsOfAFailedBackward) {
  fail_and_destroy(GetParam());
  EXPECT_EQ(device_.text_of_races(), "");
  start_without_waits_of(kComputeStream, kReduceStream);
  fail_and_destroy(GetParam());
  EXPECT_NE(device_.text_of_races().find("the next owner of compute in destruction"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Cases, FailedReplicaOrderTest, ::testing::ValuesIn(replica_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
