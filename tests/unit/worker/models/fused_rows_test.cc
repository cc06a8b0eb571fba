// The loops of the fused operations as they are shipped, in both versions, beside the same sums in
// double precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/unit/worker/models/row_versions.h"

namespace fsdprun::worker {
namespace {

using Row = std::vector<float>;

/// Widths that are no multiples of a register's, and some that are.
constexpr size_t kWidths[] = {1, 3, 8, 16, 40, 129, 1500};

/// Numbers in (-2, 2), the same ones for each seed.
Row RowOf(size_t n, uint32_t seed) {
  Row row(n);
  for (float& number : row) {
    seed = seed * 1664525 + 1013904223;
    number = static_cast<float>(seed >> 8) / (1 << 22) - 2.0F;
  }
  return row;
}

/// The largest difference, over the largest number.
double Difference(const Row& a, const std::vector<double>& b) {
  double difference = 0, largest = 1e-30;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

RowLoops SelectedLoops() {
  return {"selected",
          fused::RmsNormRows,
          fused::RmsNormRowsBackward,
          fused::RotateHeads,
          fused::RotateHeadsBack,
          fused::SwigluRow,
          fused::SwigluRowBackward,
          fused::LargestOf,
          fused::ScaleRow,
          fused::ExpOfDifference};
}

class FusedRowsTest : public ::testing::TestWithParam<bool> {
 protected:
  const RowLoops loops_ = GetParam() ? SelectedLoops() : LoopsForAnyCpu();
};

TEST_P(FusedRowsTest, RmsNorm) {
  constexpr size_t kRows = 2;
  for (const size_t n : kWidths) {
    const Row x = RowOf(kRows * n, 1), w = RowOf(n, 2), dy = RowOf(kRows * n, 3);
    Row y(kRows * n), scales(kRows), dx(kRows * n), dw(n, 0.25F);
    loops_.rms_norm(x.data(), w.data(), 1e-5F, kRows, n, y.data(), scales.data());
    loops_.rms_norm_backward(dy.data(), x.data(), w.data(), scales.data(), kRows, n, dx.data(),
                             dw.data());
    std::vector<double> expected_y, expected_dx, expected_dw(n, 0.25);
    for (size_t row = 0; row < kRows; ++row) {
      double squares = 0, products = 0;
      for (size_t i = row * n; i < (row + 1) * n; ++i) {
        squares += double{x[i]} * x[i];
        products += double{dy[i]} * w[i % n] * x[i];
      }
      const double width = static_cast<double>(n), scale = 1 / std::sqrt(squares / width + 1e-5);
      for (size_t i = row * n; i < (row + 1) * n; ++i) {
        expected_y.push_back(w[i % n] * x[i] * scale);
        expected_dx.push_back(scale *
                              (double{dy[i]} * w[i % n] - x[i] * scale * scale * products / width));
        expected_dw[i % n] += dy[i] * x[i] * scale;
      }
    }
    EXPECT_LE(Difference(y, expected_y), 1e-6) << n;
    // A row of one number has next to no gradient: the difference of two that are alike.
    EXPECT_LE(Difference(dx, expected_dx), n == 1 ? 1e-1 : 1e-5) << n;
    EXPECT_LE(Difference(dw, expected_dw), 1e-6) << n;
  }
}

TEST_P(FusedRowsTest, HeadsAreRotatedAndRotatedBack) {
  constexpr size_t kHeads = 3;
  for (const size_t dim : {2, 6, 32, 80}) {
    const Row x = RowOf(kHeads * dim, 4), cos = RowOf(dim / 2, 5), sin = RowOf(dim / 2, 6);
    Row y(x.size()), back(x.size());
    loops_.rotate(x.data(), cos.data(), sin.data(), kHeads, dim, y.data());
    loops_.rotate_back(x.data(), cos.data(), sin.data(), kHeads, dim, back.data());
    std::vector<double> expected_y(x.size()), expected_back(x.size());
    for (size_t head = 0; head < kHeads; ++head) {
      for (size_t i = 0; i < dim / 2; ++i) {
        const size_t a = head * dim + i, b = a + dim / 2;
        expected_y[a] = double{x[a]} * cos[i] - double{x[b]} * sin[i];
        expected_y[b] = double{x[b]} * cos[i] + double{x[a]} * sin[i];
        expected_back[a] = double{x[a]} * cos[i] + double{x[b]} * sin[i];
        expected_back[b] = double{x[b]} * cos[i] - double{x[a]} * sin[i];
      }
    }
    EXPECT_LE(Difference(y, expected_y), 1e-6) << dim;
    EXPECT_LE(Difference(back, expected_back), 1e-6) << dim;
  }
}

TEST_P(FusedRowsTest, Swiglu) {
  for (const size_t n : kWidths) {
    Row gate = RowOf(n, 7);
    const Row up = RowOf(n, 8), dy = RowOf(n, 9);
    std::for_each(gate.begin(), gate.end(), [](float& number) { number *= 10; });
    Row y(n), dgate(n), dup(n);
    loops_.swiglu(gate.data(), up.data(), n, y.data());
    loops_.swiglu_backward(dy.data(), gate.data(), up.data(), n, dgate.data(), dup.data());
    std::vector<double> expected_y, expected_dgate, expected_dup;
    for (size_t i = 0; i < n; ++i) {
      const double g = gate[i], s = 1 / (1 + std::exp(-g));
      expected_y.push_back(g * s * up[i]);
      expected_dup.push_back(dy[i] * g * s);
      expected_dgate.push_back(double{dy[i]} * up[i] * s * (1 + g * (1 - s)));
    }
    EXPECT_LE(Difference(y, expected_y), 2e-6) << n;
    EXPECT_LE(Difference(dgate, expected_dgate), 2e-6) << n;
    EXPECT_LE(Difference(dup, expected_dup), 2e-6) << n;
  }
}

TEST_P(FusedRowsTest, ExponentialsAreWithinTwoUnitsInTheLastPlace) {
  Row x;
  for (float number = -87.0F; number < 0.0F; number += 0.0007F) {
    x.push_back(number);
  }
  Row ours = x;
  const float sum = loops_.exp_of_difference(ours.data(), ours.size(), 0.0F);
  double worst = 0, exact_sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    worst = std::max(worst, std::abs(ours[i] - exact) / exact);
    exact_sum += exact;
  }
  EXPECT_LE(worst, 2 * std::ldexp(1.0, -23));
  EXPECT_NEAR(sum, exact_sum, 1e-5 * exact_sum);
}

TEST_P(FusedRowsTest, WhatIsNotFiniteStaysSo) {
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const size_t at : {size_t{0}, size_t{17}, size_t{36}}) {
    Row row(37, 1.0F), y(37);
    row[at] = not_a_number;
    loops_.swiglu(row.data(), row.data(), row.size(), y.data());
    EXPECT_TRUE(std::isnan(y[at])) << at;
    Row scores = row;
    EXPECT_TRUE(std::isnan(loops_.exp_of_difference(scores.data(), scores.size(), 1.0F))) << at;
    row[at] = infinite;
    EXPECT_EQ(loops_.largest(row.data(), row.size(), -infinite), infinite) << at;
  }
}

TEST_P(FusedRowsTest, LargestAndScaled) {
  for (const size_t n : kWidths) {
    Row row = RowOf(n, 10);
    const float largest = *std::max_element(row.begin(), row.end());
    EXPECT_EQ(loops_.largest(row.data(), n, -3.0F), largest) << n;
    EXPECT_EQ(loops_.largest(row.data(), n, 3.0F), 3.0F) << n;
    Row scaled = row;
    loops_.scale(scaled.data(), n, 0.5F);
    EXPECT_EQ(scaled.back(), 0.5F * row.back()) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, FusedRowsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "ForThisCpu" : "ForAnyCpu"; });

#if FSDPRUN_HAS_ROW_VERSIONS
/// Whether a product is added before it has been rounded.
bool HasFusedProducts(const RowLoops& loops) {
  const float factor = 1.0F + std::ldexp(1.0F, -12);  // whose square takes one bit too many
  const Row x = {factor, factor * factor}, cos = {factor}, sin = {1.0F};
  Row y(2);
  loops.rotate(x.data(), cos.data(), sin.data(), 1, 2, y.data());
  return y[0] != 0.0F;
}

TEST(RowVersionsTest, ACpuWithFusedProductsGetsTheLoopsThatUseThem) {
  EXPECT_FALSE(HasFusedProducts(LoopsForAnyCpu()));
  const bool has_fused_products =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  EXPECT_EQ(HasFusedProducts(SelectedLoops()), has_fused_products);
}
#endif

}  // namespace
}  // namespace fsdprun::worker
