// What is infinite or NaN among gradients, looked for without writing them.

#include "fsdp_runtime/src/optim/overflow.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/fsdp_runtime/optim/spoiled.h"

namespace fsdp::testing {
namespace {

bool is_found_in(const at::Tensor& gradient) {
  const at::Tensor found = has_non_finite({{gradient.scalar_type(), {gradient}}}, c10::kCPU);
  EXPECT_EQ(found.sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  return found.item<float>() != 0;
}

class OverflowTest : public ::testing::TestWithParam<at::ScalarType> {};

// Sizes around those of blocks and of what a thread takes.
TEST_P(OverflowTest, IsFoundInEveryPlaceAndNowhereElse) {
  for (const int64_t numel : {1, 511, 512, 513, 32768, 40001}) {
    const at::Tensor gradient = at::linspace(-3, 3, numel).to(GetParam());
    EXPECT_FALSE(is_found_in(gradient)) << numel;
    for (const int64_t place : {int64_t{0}, numel / 2, numel - 1}) {
      for (const float value : {kInf, -kInf, std::nanf("")}) {
        at::Tensor spoilt = gradient.clone();
        spoilt[place].fill_(value);
        EXPECT_TRUE(is_found_in(spoilt)) << value << " at " << place << " of " << numel;
      }
    }
  }
}

TEST_P(OverflowTest, IsNotWhatIsLargestOrSmallest) {
  at::Tensor extremes = at::zeros({8}, GetParam());
  const double largest = GetParam() == at::kHalf       ? 65504
                         : GetParam() == at::kBFloat16 ? 3.3895313892515355e38
                         : GetParam() == at::kFloat    ? std::numeric_limits<float>::max()
                                                       : std::numeric_limits<double>::max();
  extremes[0] = largest;
  extremes[1] = -largest;
  extremes[2] = -0.0;
  ASSERT_TRUE(at::isfinite(extremes).all().item<bool>());
  EXPECT_FALSE(is_found_in(extremes));
}

TEST_P(OverflowTest, IsFoundInWhatIsNotContiguous) {
  at::Tensor matrix = at::ones({30, 40}, GetParam());
  matrix[7][1] = kInf;
  EXPECT_TRUE(is_found_in(matrix.t()));
  EXPECT_FALSE(is_found_in(matrix.narrow(1, 2, 30)));
}

TEST_P(OverflowTest, IsNotInNothing) { EXPECT_FALSE(is_found_in(at::empty({0}, GetParam()))); }

INSTANTIATE_TEST_SUITE_P(Dtypes, OverflowTest,
                         ::testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16),
                         [](const auto& info) { return std::string(toString(info.param)); });

TEST(OverflowOfSeveralTest, IsFoundInTheLastOfThem) {
  const at::Tensor spoilt = at::full({3}, kInf, at::kHalf);
  const GradientsByType gradients = {{at::kFloat, {at::ones({3}), at::ones({2})}},
                                     {at::kHalf, {at::ones({3}, at::kHalf), spoilt}}};
  EXPECT_EQ(has_non_finite(gradients, c10::kCPU).item<float>(), 1);
  EXPECT_EQ(has_non_finite({}, c10::kCPU).item<float>(), 0);
}

}  // namespace
}  // namespace fsdp::testing
