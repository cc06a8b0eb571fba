// Fused operations beside the chains of ATen's operations that they stand for.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/worker/models/family_documents.h"
#include "worker/models/fused/ops.h"
#include "worker/models/fused/row_kernels.h"
#include "worker/models/rope.h"

namespace fsdprun::worker {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

/// The largest difference, over the largest number.
double Difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

/// Results and gradients of the two for the same inputs and the same gradient of the result.
void ExpectSame(const Operation& fused, const Operation& reference, const Tensors& inputs,
                double tolerance = 2e-6) {
  at::manual_seed(7);
  Tensors ours, theirs;
  for (const at::Tensor& input : inputs) {
    ours.push_back(input.clone().requires_grad_(input.is_floating_point()));
    theirs.push_back(input.clone().requires_grad_(input.is_floating_point()));
  }
  const at::Tensor result = fused(ours), expected = reference(theirs);
  ASSERT_EQ(result.sizes(), expected.sizes());
  EXPECT_LE(Difference(result.detach(), expected.detach()), tolerance);
  const at::Tensor gradient = at::randn(expected.sizes());
  result.backward(gradient);
  expected.backward(gradient);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(ours[i].grad().defined(), theirs[i].grad().defined()) << i;
    if (theirs[i].grad().defined()) {
      EXPECT_LE(Difference(ours[i].grad(), theirs[i].grad()), tolerance) << "gradient " << i;
    }
  }
}

at::Tensor ReferenceNorm(const Tensors& in) {
  return in[1] * (in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5));
}

TEST(FusedTest, RmsNorm) {
  at::manual_seed(1);
  const Operation fused = [](const Tensors& in) { return fused::RmsNorm(in[0], in[1], 1e-5); };
  // Widths that are no multiples of a register's; rows that are dealt over threads.
  for (const auto& [rows, width] : {std::pair{1, 3}, {3, 7}, {5, 40}, {700, 129}}) {
    ExpectSame(fused, ReferenceNorm, {at::randn({2, rows, width}), at::randn({width})}, 1e-5);
  }
  const Operation of_columns = [](const Tensors& in) {
    return fused::RmsNorm(in[0].transpose(0, 1), in[1], 1e-5);
  };
  ExpectSame(
      of_columns,
      [](const Tensors& in) {
        return ReferenceNorm({in[0].t(), in[1]});
      },
      {at::randn({6, 4}), at::randn({6})}, 1e-5);
}

TEST(FusedTest, Rope) {
  at::manual_seed(1);
  DecoderConfig config;
  config.head_dim = 10;
  const auto [cos, sin] = RopeTables(config, 6, at::kCPU);
  const at::Tensor cosines = cos, sines = sin;
  ExpectSame([&](const Tensors& in) { return fused::Rope(in[0], cosines, sines); },
             [&](const Tensors& in) {
               return ApplyRope(in[0].transpose(1, 2), cosines, sines).transpose(1, 2);
             },
             {at::randn({3, 6, 2, 10})});
}

TEST(FusedTest, Swiglu) {
  at::manual_seed(1);
  const Operation fused = [](const Tensors& in) { return fused::Swiglu(in[0], in[1]); };
  const Operation reference = [](const Tensors& in) { return at::silu(in[0]) * in[1]; };
  ExpectSame(fused, reference, {at::randn({4, 9, 33}) * 3, at::randn({4, 9, 33})});
  const at::Tensor extremes = at::tensor({-1e30F, -200.0F, -90.0F, 0.0F, 90.0F, 200.0F, 1e30F});
  ExpectSame(fused, reference, {extremes, at::ones({7})});
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(
      fused::Swiglu(at::full({20}, not_a_number), at::ones({20})).isnan().all().item<bool>());
}

TEST(FusedTest, ExponentialsAreWithinTwoUnitsInTheLastPlace) {
  const at::Tensor x = at::arange(-87.0, 0.0, 0.0007, at::kFloat);
  const at::Tensor ours = x.clone();
  const float sum =
      fused::ExpOfDifference(ours.mutable_data_ptr<float>(), static_cast<size_t>(x.numel()), 0.0F);
  const at::Tensor exact = x.to(at::kDouble).exp();
  const double worst = ((ours.to(at::kDouble) - exact) / exact).abs().max().item<double>();
  EXPECT_LE(worst, 2 * std::ldexp(1.0, -23));
  EXPECT_NEAR(sum, exact.sum().item<double>(), 1e-3 * sum);
}

at::Tensor ReferenceLoss(const Tensors& in) { return CausalLoss(at::linear(in[0], in[1]), in[2]); }

TEST(FusedTest, LinearCrossEntropy) {
  at::manual_seed(1);
  const Operation fused = [](const Tensors& in) {
    return fused::LinearCrossEntropy(in[0], in[1], in[2]);
  };
  const at::Tensor hidden = at::randn({2, 9, 16}), weight = at::randn({37, 16});
  const at::Tensor targets = at::randint(37, {2, 9}, at::kLong);
  ExpectSame(fused, ReferenceLoss, {hidden, weight, targets}, 5e-6);
  at::Tensor some = targets.clone();
  some[0].fill_(fused::kIgnored);
  ExpectSame(fused, ReferenceLoss, {hidden, weight, some}, 5e-6);
  // Several chunks of rows, of which the last is smaller. The reference's own gradients are 6e-4
  // off those in float64.
  const at::Tensor wide = at::randn({300'000, 2}), long_rows = at::randn({1, 60, 2});
  ExpectSame(fused, ReferenceLoss, {long_rows, wide, at::randint(300'000, {1, 60}, at::kLong)},
             2e-3);
}

TEST(FusedTest, LossWithoutGradientsMakesNone) {
  const at::Tensor hidden = at::randn({4, 8}), weight = at::randn({5, 8}).requires_grad_();
  const at::Tensor targets = at::arange(4);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(fused::LinearCrossEntropy(hidden, weight, targets).requires_grad());
  }
  fused::LinearCrossEntropy(hidden, weight, targets).backward();
  EXPECT_TRUE(weight.grad().defined());  // of a head whose inputs have none
}

TEST(FusedTest, TargetBeyondTheVocabularyIsRefused) {
  EXPECT_THROW(fused::LinearCrossEntropy(at::ones({1, 2}), at::ones({3, 2}), at::full({1}, 3)),
               c10::Error);
  EXPECT_THROW(fused::LinearCrossEntropy(at::ones({1, 2}), at::ones({3, 2}), at::full({1}, -1)),
               c10::Error);
}

TEST(FusedTest, ModelsTrainAsTheReferenceDoes) {
  const at::Tensor tokens = at::arange(40).view({2, 20});
  const at::Tensor targets = tokens + 1;
  for (const char* family : kFamilies) {
    const auto reference = MakeInitialisedModel(DocumentOf(family));
    const auto fused = MakeInitialisedModel(DocumentOf(family), Kernels::kFused);
    const at::Tensor expected = reference->Loss(tokens, targets);
    const at::Tensor loss = fused->Loss(tokens, targets);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6 * expected.item<double>());
    expected.backward();
    loss.backward();
    const auto gradients = reference->named_parameters();
    for (const auto& parameter : fused->named_parameters()) {
      EXPECT_LE(Difference(parameter.value().grad(), gradients[parameter.key()].grad()), 2e-5)
          << family << " " << parameter.key();
    }
  }
}

TEST(FusedTest, HalfPrecisionIsComputed) {
  const at::Tensor x = at::randn({3, 8}).to(at::kBFloat16), w = at::ones({8}, at::kBFloat16);
  EXPECT_EQ(fused::RmsNorm(x, w, 1e-5).scalar_type(), at::kBFloat16);
  EXPECT_EQ(fused::Swiglu(x, x).scalar_type(), at::kBFloat16);
  const at::Tensor loss =
      fused::LinearCrossEntropy(x, at::randn({5, 8}).to(at::kBFloat16), at::arange(3));
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(std::isfinite(loss.item<float>()));
}

}  // namespace
}  // namespace fsdprun::worker
