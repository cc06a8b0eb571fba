#include <ATen/ATen.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/offload_activations.h>
#include <gtest/gtest.h>

namespace fsdp::testing {
namespace {

at::Tensor some_leaf() { return at::arange(12, at::kFloat).view({3, 4}).set_requires_grad(true); }

// There is nowhere else to put them; see scripts/gpu for those of a device.
TEST(OffloadTest, TensorsOnTheCpuStayWhereTheyAre) {
  const at::Tensor x = some_leaf();
  at::Tensor y, hidden;
  {
    const OffloadActivations offload({.min_bytes = 0});
    hidden = x.sin();
    y = hidden.exp().sum();
  }
  y.backward();
  EXPECT_TRUE(at::allclose(x.grad(), x.cos() * x.sin().exp()));
}

TEST(OffloadTest, EndsWithItsScope) {
  const at::Tensor x = some_leaf();
  { const OffloadActivations offload; }
  x.exp().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x.exp().detach()));
}

TEST(OffloadTest, SegmentsWithinKeepTheirOwnHooks) {
  const at::Tensor x = some_leaf();
  int runs = 0;
  at::Tensor loss;
  {
    const OffloadActivations offload({.min_bytes = 0});
    loss = activation_checkpoint(
               CheckpointOptions{.early_stop = false},
               [&runs](const at::Tensor& t) {
                 ++runs;
                 return t.sin().exp();
               },
               x * 1)
               .sum();
  }
  loss.backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::allclose(x.grad(), x.cos() * x.sin().exp()));
}

}  // namespace
}  // namespace fsdp::testing
