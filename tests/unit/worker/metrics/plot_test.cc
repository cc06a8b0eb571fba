#include "worker/metrics/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

size_t CharactersIn(const std::string& line) {
  size_t count = 0;
  for (const char byte : line) {
    count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }
  return count;
}

TEST(PlotTest, FallingLossesAreAFallingCurve) {
  std::vector<double> values;
  for (int i = 0; i < 20; ++i) {
    values.push_back(4 - i / 10.0);
  }
  EXPECT_EQ(PlotCurve(values, {.first = 1, .last = 20, .width = 31, .height = 4}),
            "        4 |*****\n"
            "          |    *******\n"
            "          |          *******\n"
            "      2.1 |                ****\n"
            "          +--------------------\n"
            "           step 1            20\n");
}

TEST(PlotTest, BrailleHasEightDotsInACharacter) {
  const std::string plot =
      PlotCurve({0, 1}, {.first = 1, .last = 2, .width = 30, .height = 3, .is_unicode = true});
  const std::vector<std::string> lines = LinesOf(plot);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[3].substr(0, 19), "          └──");
  // The left half lies at the bottom, and a stroke leads up to the right half.
  EXPECT_NE(lines[2].find("⣀⣀⣀"), std::string::npos) << plot;
  EXPECT_NE(lines[0].find("⠉⠉"), std::string::npos) << plot;
  for (const std::string& line : lines) {
    EXPECT_LE(CharactersIn(line), 30u) << line;
  }
}

TEST(PlotTest, AnyLengthFitsTheWidth) {
  for (const size_t count : {2u, 3u, 64u, 65u, 100'000u}) {
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) {
      values.push_back(std::sin(static_cast<double>(i)));
    }
    for (const std::string& line : LinesOf(PlotCurve(values, {.last = 100'000}))) {
      EXPECT_LE(line.size(), 72u);
    }
  }
}

TEST(PlotTest, ValuesThatAreNotFiniteAreGaps) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(PlotCurve({}, {}), "");
  EXPECT_EQ(PlotCurve({1}, {}), "");
  EXPECT_EQ(PlotCurve({1, nan, infinity}, {}), "");
  const std::string plot = PlotCurve({1, nan, 3, infinity}, {.width = 31, .height = 3});
  EXPECT_EQ(LinesOf(plot)[0], "        3 |          *****");
  EXPECT_EQ(LinesOf(plot)[2], "        1 |*****");
}

TEST(PlotTest, EqualValuesAreALineInTheMiddle) {
  const std::string plot = PlotCurve({2, 2, 2}, {.width = 31, .height = 3});
  EXPECT_EQ(LinesOf(plot)[1], "          |" + std::string(20, '*'));
}

}  // namespace
}  // namespace fsdprun::worker
