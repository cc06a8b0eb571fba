// fully_shard without a mesh, in a process of one rank: see default_group_test.cc for several.

#include <fsdp/process_group.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>

#include "tests/unit/fsdp_runtime/engine/ranks.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(DefaultMeshTest, IsOfTheGroupThatWasFormed) {
  const std::shared_ptr<Collectives> world = init_process_group({});
  const auto layer = std::make_shared<torch::nn::LinearImpl>(4, 2);
  const FSDPModule handle = fully_shard(layer);
  const std::vector<LocalShard> shards = handle.sharded_parameters();
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].mesh_axes, std::vector<std::string>{"dp_shard"});
  EXPECT_EQ(shards[0].local.numel(), 8);
  EXPECT_EQ(shards[0].local.device(), world->device());
}

TEST(DefaultMeshTest, OtherOptionsCanBeGivenWithoutOne) {
  const std::shared_ptr<Collectives> world = init_process_group({});
  const Unit<torch::nn::LinearImpl> layer(std::make_shared<torch::nn::LinearImpl>(4, 2));
  fully_shard(layer.ptr(), {.mp_policy = {.param_dtype = at::kBFloat16}});
  EXPECT_EQ(layer(at::ones({1, 4})).scalar_type(), at::kBFloat16);
}

TEST(DefaultMeshTest, TheModuleKeepsTheGroup) {
  std::shared_ptr<Collectives> world = init_process_group({});
  const Unit<torch::nn::LinearImpl> layer(std::make_shared<torch::nn::LinearImpl>(4, 2));
  const FSDPModule handle = fully_shard(layer.ptr());
  const std::weak_ptr<Collectives> group = world;
  world.reset();
  EXPECT_FALSE(group.expired());
  layer(at::ones({1, 4})).sum().backward();
  EXPECT_TRUE(handle.sharded_gradients()[0].local.defined());
}

TEST(DefaultMeshTest, WithoutAGroupTheModuleStaysWhatItIs) {
  (void)init_process_group({});
  const auto layer = std::make_shared<torch::nn::LinearImpl>(4, 2);
  const std::string said = refusal([&] { fully_shard(layer); });
  EXPECT_EQ(said.find("fully_shard without a mesh: "), 0U) << said;
  EXPECT_NE(said.find("has been destroyed"), std::string::npos) << said;
  EXPECT_FALSE(fsdp_module(*layer));
  EXPECT_EQ(layer->forward(at::ones({1, 4})).sizes(), at::IntArrayRef({1, 2}));
}

// It is a reference to what the module has.
TEST(DefaultMeshTest, AHandleThatCannotBeChangedCanStillBeUsed) {
  const std::shared_ptr<Collectives> world = init_process_group({});
  const Unit<torch::nn::LinearImpl> layer(std::make_shared<torch::nn::LinearImpl>(4, 2));
  const FSDPModule handle = fully_shard(layer.ptr());
  handle.init_parameters([](const std::string&, const at::Tensor& full) { full.fill_(1.0); });
  handle.set_requires_gradient_sync(false);
  handle.set_requires_all_reduce(false);
  handle.set_all_reduce_hook(nullptr);
  handle.set_reshard_after_forward(true);
  handle.set_reshard_after_backward(true);
  handle.set_modules_to_forward_prefetch({});
  handle.set_modules_to_backward_prefetch({});
  handle.set_gradient_divide_factor(2.0);
  handle.unshard();
  EXPECT_TRUE(at::equal(layer->weight, at::ones({2, 4})));
  handle.reshard();
  handle.prepare_to_write();
  EXPECT_TRUE(at::equal(handle.full_parameter("bias"), at::ones({2})));
}

}  // namespace
}  // namespace fsdp::testing
