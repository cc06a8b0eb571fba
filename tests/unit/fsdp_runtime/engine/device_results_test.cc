// What has not arrived because the group has failed is not used, where a wait on the host has not
// told: on a device. A stand-in says that it has failed.

#include <fsdp/optim.h>
#include <gmock/gmock.h>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

struct OnDevice {
  std::shared_ptr<FailingDevice> comm =
      std::make_shared<FailingDevice>(make_local_world(1, std::chrono::seconds(60))[0]);
  Sharded setup = sharded();

  Sharded sharded() const {
    FullyShardOptions options;
    options.mesh = init_device_mesh(c10::kCPU, {1}, {"dp_shard"}, comm);
    Sharded made{make_sharded({}, options), {}};
    made.root = fsdp_module(*made.model);
    made.root.init_parameters(initialise);
    return made;
  }
};

TEST(DeviceResultsTest, GradientsThatHaveNotArrivedAreNotUsed) {
  OnDevice device;
  AdamW optimizer(device.setup.root, {});
  loss(device.setup.model, 0, 0).backward();
  device.comm->has_failed = true;
  EXPECT_THROW(optimizer.step(), c10::Error);
  EXPECT_THROW(clip_grad_norm_(device.setup.root, 1), c10::Error);
  EXPECT_THROW(device.setup.root.sharded_gradients(), c10::Error);
  for (const LocalShard& moment : optimizer.exp_avg()) {
    EXPECT_TRUE(moment.local.eq(0).all().item<bool>()) << moment.fqn;
  }
  for (const int64_t steps : optimizer.parameter_steps()) {
    EXPECT_EQ(steps, 0);
  }
  device.comm->has_failed = false;
  optimizer.step();
}

// Ranks exchange what they have used, because it differs.
TEST(DeviceResultsTest, FlagsThatHaveNotArrivedAreNotUsed) {
  run_ranks(2, [](Rank& rank) {
    const auto device = std::make_shared<FailingDevice>(rank.comm);
    rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, device);
    Sharded setup = make(rank);
    setup.model->blocks[0]->use_spare = rank.rank == 0;
    const at::Tensor value = loss(setup.model, 0, rank.rank);
    device->has_failed = true;
    EXPECT_THROW(value.backward(), c10::Error);
  });
}

}  // namespace
}  // namespace fsdp::testing
