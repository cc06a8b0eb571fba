#include "fsdpctl/ckpt/amounts.h"

#include <gtest/gtest.h>

#include <optional>

namespace fsdprun::ckpt {
namespace {

TEST(AmountsTest, NoSizes) {
  for (const char* text : {"", "GB", "0", "-1GB", "5 GB", "5gb", "1.5GB", "9223372036854775807KB",
                           "99999999999999999999"}) {
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
  }
}

TEST(AmountsTest, Sizes) {
  EXPECT_EQ(ParseBytes("5GB"), 5'000'000'000);
  EXPECT_EQ(ParseBytes("512MiB"), 536'870'912);
  EXPECT_EQ(ParseBytes("17"), 17);
}

TEST(AmountsTest, Texts) {
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1'340'000'000), "1.34 GB");
  EXPECT_EQ(BytesText(999'999'999), "1 GB");
  EXPECT_EQ(AgeText(-5), "0 s");
  EXPECT_EQ(AgeText(600), "10 min");
  EXPECT_EQ(AgeText(3 * 86400), "3 days");
  EXPECT_EQ(ShapeText({}), "[]");
  EXPECT_EQ(ShapeText({2, 3}), "[2, 3]");
  EXPECT_EQ(Printable("a\x1b[1m\n"), "a?[1m?");
  EXPECT_EQ(TableText({{"A", "B"}, {"long", "x"}}), "A     B\nlong  x\n");
}

}  // namespace
}  // namespace fsdprun::ckpt
