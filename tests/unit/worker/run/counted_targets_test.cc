#include "worker/run/counted_targets.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/models/causal_lm.h"

namespace fsdprun::worker {
namespace {

Batch TargetsOf(const std::vector<int64_t>& targets, int64_t counted) {
  const at::Tensor row = at::tensor(targets, at::kLong).view({1, -1});
  return {at::zeros_like(row), row, counted};
}

TEST(CountedTargetsTest, WithoutThemAllWeighTheSame) {
  CountedTargets counted(/*may_ignore_targets=*/false);
  counted.BeginStep();
  EXPECT_EQ(counted.Weigh(TargetsOf({1, 2}, 2)), 1.0);
  EXPECT_EQ(counted.share(), 1.0);
}

// The losses of two micro batches, weighed and divided by the share, are the mean over all targets
// that count.
TEST(CountedTargetsTest, MeanOverAllTargetsThatCount) {
  const at::Tensor logits = at::arange(24, at::kFloat).view({1, 8, 3}).sin();
  const Batch first = TargetsOf({1, kIgnoredTarget, 0, kIgnoredTarget}, 2);
  const Batch second = TargetsOf({2, 1, 0, kIgnoredTarget}, 3);
  const Batch third = TargetsOf({0, kIgnoredTarget, kIgnoredTarget, kIgnoredTarget}, 0);
  CountedTargets counted(/*may_ignore_targets=*/true);
  counted.BeginStep();
  const at::Tensor sum =
      CausalLoss(logits.narrow(1, 0, 4), first.targets) * counted.Weigh(first) +
      CausalLoss(logits.narrow(1, 4, 4), second.targets) * counted.Weigh(second) +
      CausalLoss(logits.narrow(1, 4, 4), third.targets) * counted.Weigh(third);
  EXPECT_EQ(counted.share(), 5.0 / 12);
  const at::Tensor whole = CausalLoss(logits, at::cat({first.targets, second.targets}, 1));
  EXPECT_NEAR((sum / 3 / counted.share()).item<double>(), whole.item<double>(), 1e-6);
  counted.BeginStep();
  EXPECT_EQ(counted.share(), 1.0);
}

}  // namespace
}  // namespace fsdprun::worker
