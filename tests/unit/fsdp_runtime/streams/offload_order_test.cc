// What orders copies between the host and a device, with CPUOffloadPolicy: the host's waits, on a
// fake device. Nothing else does, so each is a race if it is left out.

#include <fsdp/grad_scaler.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

class OffloadOrderTest : public ::testing::Test {
 protected:
  void SetUp() override { device_.start(); }
  void TearDown() override { device_.stop(); }

  static Case offloaded(MixedPrecisionPolicy mp_policy = {}) {
    Case test_case{.name = "offload"};
    test_case.config.blocks = 4;
    test_case.options.mp_policy = mp_policy;
    test_case.options.offload_policy = CPUOffloadPolicy{};
    return test_case;
  }
  void leave_out_waits_of_the_host() {
    device_.leave_out_waits(
        [](const FakeDevice::Wait& wait) { return wait.waiting == FakeDevice::kHost; });
  }
  void expect_race(const std::string& earlier, const std::string& later) const {
    const bool is_found =
        std::any_of(device_.races().begin(), device_.races().end(), [&](const auto& found) {
          return found.first.earlier.find(earlier) != std::string::npos &&
                 found.first.later.find(later) != std::string::npos;
        });
    EXPECT_TRUE(is_found) << "found only:\n" << device_.text_of_races();
  }

  FakeDevice& device_ = FakeDevice::get();
};

TEST_F(OffloadOrderTest, HostOwnsShardsGradientsAndOptimizerState) {
  const Case test_case = offloaded();
  Sharded setup = sharded_for(test_case);
  AdamW optimizer(setup.root, {});
  loss(setup.model, 0, 0).backward();
  const auto expect_on_host = [this](const std::vector<LocalShard>& parts) {
    for (const LocalShard& part : parts) {
      if (part.local.defined() && part.local.numel() > 0) {
        EXPECT_TRUE(device_.is_on_host(static_cast<const char*>(part.local.const_data_ptr())))
            << part.fqn;
      }
    }
  };
  expect_on_host(setup.root.sharded_parameters());
  expect_on_host(setup.root.sharded_gradients());
  expect_on_host(optimizer.exp_avg());
  expect_on_host(optimizer.exp_avg_sq());
  const auto is_pinned = [this](const std::vector<LocalShard>& parts) {
    return device_.is_pinned(static_cast<const char*>(parts.front().local.const_data_ptr()));
  };
  EXPECT_TRUE(is_pinned(setup.root.sharded_parameters()));
  EXPECT_TRUE(is_pinned(setup.root.sharded_gradients()));
  EXPECT_FALSE(is_pinned(optimizer.exp_avg()));  // the device never sees them
  EXPECT_FALSE(is_pinned(optimizer.exp_avg_sq()));
  setup.root.unshard();
  EXPECT_FALSE(
      device_.is_on_host(static_cast<const char*>(setup.model->embedding.const_data_ptr())));
}

// Copies go beside compute, and the host is behind all of them only where a backward ends.
TEST_F(OffloadOrderTest, HostWaitsInNoForwardAndAtTheEndOfABackward) {
  train(offloaded(), 3);
  bool waits_in_backward = false;
  for (const FakeDevice::Wait& wait : device_.waits()) {
    if (wait.waiting == FakeDevice::kHost) {
      EXPECT_EQ(wait.phase, "backward");
      waits_in_backward = true;
    }
  }
  EXPECT_TRUE(waits_in_backward);
  EXPECT_EQ(device_.text_of_races(), "");
}

TEST_F(OffloadOrderTest, HostReadsGradientsWhenTheyHaveArrived) {
  leave_out_waits_of_the_host();
  train(offloaded(), 1);
  expect_race("copy_ on a reduce lane in backward", "of the host in clipping");
}

TEST_F(OffloadOrderTest, HostAddsGradientsWhenTheyHaveArrived) {
  leave_out_waits_of_the_host();
  Case test_case = offloaded();
  test_case.microbatches = 2;
  test_case.reduces_each_in_its_row = true;
  train(test_case, 1);
  expect_race("copy_ on a reduce lane in backward", "add_ of the host in backward");
}

/// Without clipping, for which the host reads a norm.
void train_and_step(const Case& test_case, FakeDevice& device) {
  Sharded setup = sharded_for(test_case);
  Optimizers optimizers = optimizers_for(test_case, setup.root);
  forward_and_backward(test_case, setup, 0);
  device.set_phase("the optimizer");
  optimizers.front()->step();
}

// The scale is the device's, and the host divides by it.
TEST_F(OffloadOrderTest, HostReadsTheScaleWhenItHasArrived) {
  const Case test_case = offloaded({at::kHalf, at::kHalf, std::nullopt});
  Sharded setup = sharded_for(test_case);
  AdamW optimizer(setup.root, {});
  GradScaler scaler({.init_scale = 8});
  for (const bool unscales : {false, true}) {
    device_.set_phase("forward");
    const at::Tensor scaled = scaler.scale(loss(setup.model, 0, 0));
    device_.set_phase("backward");
    scaled.backward();
    device_.set_phase("the optimizer");
    if (unscales) {
      scaler.unscale_(optimizer);
    }
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
  }
  EXPECT_EQ(device_.text_of_races(), "");
  EXPECT_EQ(device_.count("to without a wait"), 0);
}

/// A group of the user's, with no lanes.
struct WithoutLanes : FakeCollectives {
  using FakeCollectives::FakeCollectives;
  c10::Device device() const override { return FakeDevice::device(); }
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    return Collectives::run_on_lane(std::move(issue), std::move(stage));
  }
};

TEST_F(OffloadOrderTest, HostWaitsForAStageOfAGroupWithoutLanes) {
  WithoutLanes group(2);
  const at::Tensor tensor = at::zeros({4});
  const WorkPtr work = group.run_on_lane(Lane::kReduce, [&] { tensor.add_(1); });
  EXPECT_EQ(device_.host_waits(), 0);
  work->wait();
  EXPECT_EQ(device_.host_waits(), 0);
  work->wait_on_host();
  EXPECT_EQ(device_.host_waits(), 1);
}

/// A copy of a shard finds no memory on the device for a cast, once.
struct FailsToCopyOnce : FakeCollectives {
  using FakeCollectives::FakeCollectives;
  bool fails = false;
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    if (issue.lane == Lane::kGather && std::exchange(fails, false)) {
      stage = [] { TORCH_CHECK(false, "no memory"); };
    }
    return FakeCollectives::run_on_lane(std::move(issue), std::move(stage));
  }
};

TEST_F(OffloadOrderTest, ACopyThatFailsDoesNotFailAllThatFollows) {
  const auto group = std::make_shared<FailsToCopyOnce>(2);
  const std::vector<std::shared_ptr<Collectives>> groups = {group};
  Rank rank;
  rank.mesh = std::make_shared<DeviceMesh>(c10::kCPU, std::vector<int64_t>{2},
                                           std::vector<std::string>{"dp_shard"}, groups);
  const Case test_case = offloaded();
  const Sharded setup = make(rank, test_case.config, test_case.options);
  group->fails = true;
  EXPECT_NE(refusal([&] { setup.root.unshard(); }).find("no memory"), std::string::npos);
  EXPECT_NE(refusal([&] { setup.root.prepare_to_write(); }).find("no memory"), std::string::npos);
  setup.root.prepare_to_write();
  setup.root.unshard();
  EXPECT_EQ(device_.text_of_races(), "");
}

TEST_F(OffloadOrderTest, HostWritesShardsWhenTheDeviceHasReadThem) {
  train_and_step(offloaded(), device_);
  EXPECT_EQ(device_.text_of_races(), "");
  device_.stop();
  device_.start();
  leave_out_waits_of_the_host();
  train_and_step(offloaded(), device_);
  expect_race("copy_ on a gather lane in backward", "of the host in the optimizer");
}

TEST_F(OffloadOrderTest, SoItDoesIfTheDeviceCasts) {
  const Case test_case = offloaded({at::kBFloat16, at::kFloat, std::nullopt});
  train_and_step(test_case, device_);
  EXPECT_EQ(device_.text_of_races(), "");
  device_.stop();
  device_.start();
  leave_out_waits_of_the_host();
  train_and_step(test_case, device_);
  expect_race("copy_ on a gather lane in backward", "of the host in the optimizer");
}

/// Writes the shards behind an evaluation, which is allowed without prepare_to_write().
void evaluate_and_write(const Case& test_case, FakeDevice& device) {
  Sharded setup = sharded_for(test_case);
  device.set_phase("evaluation");
  const at::NoGradGuard no_grad;
  loss(setup.model, 0, 0);
  device.set_phase("writing");
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    shard.local.mul_(0.5);
  }
}

TEST_F(OffloadOrderTest, ShardsMayBeWrittenBehindAnEvaluation) {
  evaluate_and_write(offloaded(), device_);
  EXPECT_EQ(device_.text_of_races(), "");
}

TEST_F(OffloadOrderTest, WithoutAWaitThatIsARace) {
  leave_out_waits_of_the_host();
  evaluate_and_write(offloaded(), device_);
  expect_race("copy_ on a gather lane in evaluation", "mul_ of the host in writing");
}

TEST_F(OffloadOrderTest, PrepareToWriteWaitsForAGatherThatNobodyHasUsed) {
  Sharded setup = sharded_for(offloaded());
  device_.set_phase("gathering");
  setup.root.unshard_async();
  setup.root.prepare_to_write();
  device_.set_phase("writing");
  setup.root.sharded_parameters()[0].local.mul_(0.5);
  EXPECT_EQ(device_.text_of_races(), "");
}

}  // namespace
}  // namespace fsdp::testing
