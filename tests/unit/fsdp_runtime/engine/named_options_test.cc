// Options are given by name, and what is not named stays what it is: without a warning under the
// flags of a stranger, which count here as errors.

#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <gtest/gtest.h>

namespace fsdp::testing {
namespace {

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wmissing-field-initializers"

TEST(NamedOptionsTest, NeedNoOthers) {
  const auto mesh = init_device_mesh(c10::kCPU, {1}, {"dp"},
                                     init_process_group({.timeout = std::chrono::seconds(1)}));
  const FullyShardOptions of_mesh{.mesh = mesh};
  EXPECT_EQ(of_mesh.mesh, mesh);
  EXPECT_FALSE(of_mesh.reshard_after_forward.has_value());
  const FullyShardOptions of_precision{.mp_policy = {.param_dtype = at::kBFloat16}};
  EXPECT_EQ(of_precision.mesh, nullptr);
  EXPECT_FALSE(of_precision.mp_policy.reduce_dtype.has_value());
  EXPECT_TRUE(of_precision.mp_policy.cast_forward_inputs);
  EXPECT_FALSE(MixedPrecisionPolicy{.output_dtype = at::kFloat}.param_dtype.has_value());
  EXPECT_EQ(ProcessGroupOptions{.backend = "gloo"}.world_size, 1);
  EXPECT_EQ(AdamWOptions{.lr = 1.0}.beta1, 0.9);
  EXPECT_FALSE(AdamWParamGroup{.params = {"weight"}}.lr.has_value());
  EXPECT_FALSE(GradScaling{.grad_scale = at::Tensor()}.found_inf.defined());
  EXPECT_FALSE(StateDictOptions{.full_state_dict = true}.cpu_offload);
  EXPECT_TRUE(OptimizerParamGroup{.params = {"weight"}}.options.empty());
}

#pragma GCC diagnostic pop

}  // namespace
}  // namespace fsdp::testing
