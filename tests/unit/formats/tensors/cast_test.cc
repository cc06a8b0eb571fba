#include "formats/tensors/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

uint16_t Cast(float value, const char* to) {
  uint16_t out = 0;
  CastElements("float32", &value, to, &out, 1);
  return out;
}

TEST(CastTest, HalvesRoundToTheNearestEvenOne) {
  EXPECT_EQ(Cast(1.0F, "float16"), 0x3c00);
  EXPECT_EQ(Cast(-2.0F, "float16"), 0xc000);
  EXPECT_EQ(Cast(1.0F + 0x1p-11F, "float16"), 0x3c00);
  EXPECT_EQ(Cast(1.0F + 3 * 0x1p-11F, "float16"), 0x3c02);
  EXPECT_EQ(Cast(65519.0F, "float16"), 0x7bff);
  EXPECT_EQ(Cast(65520.0F, "float16"), 0x7c00);
  EXPECT_EQ(Cast(0x1p-24F, "float16"), 0x0001);
  EXPECT_EQ(Cast(0x1p-25F, "float16"), 0x0000);
  EXPECT_EQ(Cast(0x1.8p-25F, "float16"), 0x0001);
  EXPECT_EQ(Cast(-0.0F, "float16"), 0x8000);
  EXPECT_EQ(Cast(std::numeric_limits<float>::quiet_NaN(), "float16") & 0x7e00, 0x7e00);
}

TEST(CastTest, BrainFloatsRoundToTheNearestEvenOne) {
  EXPECT_EQ(Cast(1.0F, "bfloat16"), 0x3f80);
  EXPECT_EQ(Cast(1.0F + 0x1p-8F, "bfloat16"), 0x3f80);
  EXPECT_EQ(Cast(1.0F + 3 * 0x1p-8F, "bfloat16"), 0x3f82);
  EXPECT_EQ(Cast(std::numeric_limits<float>::max(), "bfloat16"), 0x7f80);
  EXPECT_EQ(Cast(std::numeric_limits<float>::quiet_NaN(), "bfloat16"), 0x7fc0);
}

TEST(CastTest, EveryHalfComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value = 0;
    CastElements("float16", &half, "float32", &value, 1);
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7fff, 0x7c00U);
      continue;
    }
    EXPECT_EQ(Cast(value, "float16"), half);
    EXPECT_EQ(ElementValue("float16", &half), static_cast<double>(value));
  }
}

TEST(CastTest, ValuesOfIntegers) {
  const int64_t large = -(int64_t{1} << 52);
  const int16_t small = -7;
  const uint8_t byte = 200;
  EXPECT_EQ(ElementValue("int64", &large), -0x1p52);
  EXPECT_EQ(ElementValue("int16", &small), -7);
  EXPECT_EQ(ElementValue("uint8", &byte), 200);
  EXPECT_THROW(ElementValue("complex64", &large), fsdp::archive::Error);
  EXPECT_FALSE(IsCastable("int64"));
}

}  // namespace
}  // namespace fsdprun
