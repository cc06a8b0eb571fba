#include "fsdp_runtime/shm/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/fsdp_runtime/shm/same_bits.h"

namespace fsdp::shm {
namespace {

using testing::same_bits;

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest even through the neighbours, on purpose not by the same bit trick.
uint16_t to_bf16(float value) {
  if (std::isnan(value)) {
    return 0x7fc0;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto low = static_cast<uint16_t>(bits >> 16);
  const uint32_t rest = bits & 0xffff;
  if (rest > 0x8000 || (rest == 0x8000 && (low & 1) != 0)) {
    return static_cast<uint16_t>(low + 1);
  }
  return low;
}

std::vector<std::vector<float>> random_sources(size_t count, size_t numel) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> sources(count, std::vector<float>(numel));
  for (auto& source : sources) {
    for (float& x : source) {
      x = normal(random) * std::exp2(static_cast<float>(random() % 20));
    }
  }
  return sources;
}

template <typename T>
std::vector<const void*> pointers(const std::vector<std::vector<T>>& sources) {
  std::vector<const void*> result;
  for (const auto& source : sources) {
    result.push_back(source.data());
  }
  return result;
}

TEST(ReduceTest, Float32AddsInRankOrderThenDivides) {
  for (const size_t numel : {1, 3, 1023, 1024, 1025, 5000}) {
    for (const size_t count : {1, 2, 3, 7}) {
      const auto sources = random_sources(count, numel);
      std::vector<float> out(numel);
      reduce_ordered(out.data(), pointers(sources).data(), count, numel, DType::kF32,
                     ReduceOp::kAvg);
      std::vector<float> expected(numel);
      for (size_t i = 0; i < numel; ++i) {
        float sum = sources[0][i];
        for (size_t s = 1; s < count; ++s) {
          sum += sources[s][i];
        }
        expected[i] = sum / static_cast<float>(count);
      }
      EXPECT_TRUE(same_bits(out.data(), expected)) << count << " sources";
    }
  }
}

TEST(ReduceTest, BFloat16AddsInFloat32AndRoundsOnce) {
  const auto wide = random_sources(3, 4097);
  std::vector<std::vector<uint16_t>> sources(3, std::vector<uint16_t>(4097));
  for (size_t s = 0; s < 3; ++s) {
    for (size_t i = 0; i < 4097; ++i) {
      sources[s][i] = to_bf16(wide[s][i]);
    }
  }
  std::vector<uint16_t> out(4097);
  reduce_ordered(out.data(), pointers(sources).data(), 3, 4097, DType::kBF16, ReduceOp::kSum);
  std::vector<uint16_t> expected(4097);
  for (size_t i = 0; i < 4097; ++i) {
    expected[i] =
        to_bf16((from_bf16(sources[0][i]) + from_bf16(sources[1][i])) + from_bf16(sources[2][i]));
  }
  EXPECT_TRUE(same_bits(out.data(), expected));
}

// Bit patterns of float16; not every compiler of the tests has the type.
constexpr uint16_t kHalfZero = 0x0000;
constexpr uint16_t kHalfQuarter = 0x3400;
constexpr uint16_t kHalfHalf = 0x3800;
constexpr uint16_t kHalfOne = 0x3c00;
constexpr uint16_t kHalf2048 = 0x6800;
constexpr uint16_t kHalfMax = 0x7bff;
constexpr uint16_t kHalfInfinity = 0x7c00;

TEST(ReduceTest, Float16AddsInFloat32AndOverflowsToInfinity) {
  const std::vector<std::vector<uint16_t>> sources = {{kHalfOne, kHalfMax, kHalf2048},
                                                      {kHalfHalf, kHalfMax, kHalfOne},
                                                      {kHalfQuarter, kHalfZero, kHalfOne}};
  std::vector<uint16_t> out(3);
  reduce_ordered(out.data(), pointers(sources).data(), 3, 3, DType::kF16, ReduceOp::kSum);
  EXPECT_EQ(out[0], 0x3f00);  // 1.75
  EXPECT_EQ(out[1], kHalfInfinity);
  EXPECT_EQ(out[2], 0x6801);  // 2050; one by one in float16 it would stay 2048
}

TEST(ReduceTest, NaNAndInfinityPass) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> sources = {{nan, 1, inf, 2}, {1, nan, 1, 3}};
  std::vector<float> out(4);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    reduce_ordered(out.data(), pointers(sources).data(), 2, 4, DType::kF32, op);
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_TRUE(std::isnan(out[1]));
    EXPECT_EQ(out[2], inf);
  }
  EXPECT_EQ(out[3], 3);
}

TEST(ReduceTest, BFloat16NaNStaysNaN) {
  const std::vector<std::vector<uint16_t>> sources = {{0x7fff}, {0x0000}};
  uint16_t out = 0;
  reduce_ordered(&out, pointers(sources).data(), 2, 1, DType::kBF16, ReduceOp::kSum);
  EXPECT_EQ(out, 0x7fc0);
}

TEST(ReduceTest, OutputMayBeASource) {
  auto sources = random_sources(3, 3000);
  std::vector<float> expected(3000);
  reduce_ordered(expected.data(), pointers(sources).data(), 3, 3000, DType::kF32, ReduceOp::kSum);
  reduce_ordered(sources[2].data(), pointers(sources).data(), 3, 3000, DType::kF32, ReduceOp::kSum);
  EXPECT_TRUE(same_bits(sources[2].data(), expected));
}

TEST(ReduceTest, AddsWithTheBitsOfAnAdditionOfItsOwn) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    for (const size_t count : {1, 2, 3}) {
      const auto sources = random_sources(count, 3000);
      const std::vector<float> before = random_sources(1, 3000).front();
      std::vector<float> reduced(3000);
      reduce_ordered(reduced.data(), pointers(sources).data(), count, 3000, DType::kF32, op);
      std::vector<float> out = before;
      reduce_ordered(out.data(), pointers(sources).data(), count, 3000, DType::kF32, op,
                     Result::kAdded);
      std::vector<float> expected(3000);
      for (size_t i = 0; i < 3000; ++i) {
        expected[i] = before[i] + reduced[i];
      }
      EXPECT_TRUE(same_bits(out.data(), expected)) << count << " sources";
    }
  }
}

TEST(ReduceTest, HalvesOfSmallNumbersAreRoundedOnce) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const std::vector<std::vector<float>> sources = {{smallest, 3 * smallest}, {0, 0}};
  std::vector<float> out(2);
  reduce_ordered(out.data(), pointers(sources).data(), 2, 2, DType::kF32, ReduceOp::kAvg);
  EXPECT_EQ(out[0], smallest / 2);
  EXPECT_EQ(out[1], 3 * smallest / 2);
}

TEST(ReduceTest, IntegersAndDoublesAreExact) {
  const std::vector<std::vector<int64_t>> longs = {{1, INT64_C(1) << 53}, {2, 1}};
  std::vector<int64_t> out(2);
  reduce_ordered(out.data(), pointers(longs).data(), 2, 2, DType::kI64, ReduceOp::kSum);
  EXPECT_EQ(out, (std::vector<int64_t>{3, (INT64_C(1) << 53) + 1}));
  const std::vector<std::vector<double>> doubles = {{0.1}, {0.2}, {0.3}};
  double sum = 0;
  reduce_ordered(&sum, pointers(doubles).data(), 3, 1, DType::kF64, ReduceOp::kAvg);
  EXPECT_EQ(sum, ((0.1 + 0.2) + 0.3) / 3.0);
}

}  // namespace
}  // namespace fsdp::shm
