#include "fsdpctl/top/screen_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>
#include <cmath>
#include <cstdint>

#include "fsdpctl/top/amounts.h"

namespace fsdprun::top {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;

class ScreenTextTest : public ::testing::Test {
 protected:
  ScreenTextTest() { std::setlocale(LC_CTYPE, "C.UTF-8"); }
  ~ScreenTextTest() override { std::setlocale(LC_CTYPE, "C"); }
};

TEST_F(ScreenTextTest, NothingSteersTheTerminal) {
  EXPECT_EQ(ScreenText("a\x1b[2J\nb\tc\x7f"), "a [2J b c ");
  EXPECT_EQ(ScreenText(std::string("a\0b", 3)), "a b");
  EXPECT_EQ(ScreenText("\xc2\x9b"
                       "2J"),
            "?2J");  // CSI as one character.
}

TEST_F(ScreenTextTest, OnlyWhatCanBeShownIs) {
  EXPECT_EQ(ScreenText("größe 损失"), "größe 损失");
  EXPECT_EQ(ScreenText("\xff\xc3"), "??");
  EXPECT_EQ(ScreenText("a\xe2\x80\xae"
                       "b"),
            "ab");  // Writing from right to left.
}

TEST_F(ScreenTextTest, WithoutUtf8ItIsAscii) {
  std::setlocale(LC_CTYPE, "C");
  EXPECT_EQ(ScreenText("\xc3\xb6 a"), "?? a");
}

TEST_F(ScreenTextTest, ColumnsAreCountedNotBytes) {
  EXPECT_EQ(ColumnsOf("größe"), 5);
  EXPECT_EQ(ColumnsOf("损失"), 4);
}

TEST_F(ScreenTextTest, FitsExactly) {
  EXPECT_EQ(Fit("ab", 4), "ab  ");
  EXPECT_EQ(Fit("ab", 4, true), "  ab");
  EXPECT_EQ(Fit("abcde", 4), "abc~");
  EXPECT_EQ(Fit("损失损失", 5), "损失~");
  EXPECT_EQ(Fit("损失损失", 4), "损~ ");  // Half a letter has no room.
  EXPECT_EQ(Fit("abc", 0), "");
}

TEST_F(ScreenTextTest, WrapsAtBlanks) {
  EXPECT_THAT(Wrap("one two three four", 9, 9), ElementsAre("one two", "three", "four"));
  EXPECT_THAT(Wrap("one two three four", 9, 2), ElementsAre("one two", "three fo~"));
  EXPECT_THAT(Wrap("abcdefgh", 3, 9), ElementsAre("abc", "def", "gh"));
  EXPECT_THAT(Wrap("one two", 3, 9), ElementsAre("one", "two"));
  EXPECT_THAT(Wrap("损", 1, 9), IsEmpty());
  EXPECT_THAT(Wrap("", 9, 9), IsEmpty());
}

TEST(AmountsTest, TimesAreShort) {
  EXPECT_EQ(TimeText(0), "0ms");
  EXPECT_EQ(TimeText(312 * kMs), "312ms");
  EXPECT_EQ(TimeText(999'900'000), "0.9s");
  EXPECT_EQ(TimeText(4160 * kMs), "4.1s");
  EXPECT_EQ(TimeText(125'000 * kMs), "2m05s");
  EXPECT_EQ(TimeText(kMs * (3 * 3'600'000 + 12 * 60'000)), "3h12m");
  EXPECT_EQ(TimeText(kMs * 99 * 24 * 3'600'000), "99d00h");
  EXPECT_EQ(TimeText(-5), "0ms");
}

TEST(AmountsTest, BytesAndCountsHaveUnits) {
  EXPECT_EQ(BytesText(930), "930");
  EXPECT_EQ(BytesText(1024), "1.0K");
  EXPECT_EQ(BytesText(13'207'024'435), "12.3G");
  EXPECT_EQ(BytesText(int64_t{999} << 30), "999G");
  EXPECT_EQ(BytesText(int64_t{1000} << 30), "1.0T");
  EXPECT_EQ(CountText(930), "930");
  EXPECT_EQ(CountText(0.5), "0.5");
  EXPECT_EQ(CountText(12'345), "12.3k");
  EXPECT_EQ(CountText(4.5e6), "4.5M");
}

TEST(AmountsTest, SharesAndNumbers) {
  EXPECT_EQ(ShareText(63, 100), "63%");
  EXPECT_EQ(ShareText(200, 100), "100%");  // Read at different times.
  EXPECT_EQ(ShareText(1, 0), "-");
  EXPECT_EQ(NumberText(2.53149), "2.531");
  EXPECT_EQ(NumberText(12345.678), "12346");
  EXPECT_EQ(NumberText(0), "0");
  EXPECT_EQ(NumberText(1e7), "1e7");
  EXPECT_EQ(NumberText(12345678), "1.235e7");
  EXPECT_EQ(NumberText(0.001234), "0.00123");
  EXPECT_EQ(NumberText(0.00012345), "1.23e-4");
  EXPECT_EQ(NumberText(-1.5e-100), "-2e-100");
  EXPECT_EQ(NumberText(NAN), "nan");
  EXPECT_EQ(NumberText(-INFINITY), "-inf");
}

TEST(AmountsTest, NoNumberIsTooWideOrFarOff) {
  for (double number = 1e-300; number < 1e300; number *= 1.37) {
    for (const double signed_number : {number, -number}) {
      const std::string text = NumberText(signed_number);
      ASSERT_LE(text.size(), 7U) << signed_number;
      ASSERT_NEAR(std::stod(text) / signed_number, 1, 0.35) << text;
      const bool is_common = signed_number >= 1e-3 && signed_number < 1e6;
      ASSERT_NEAR(std::stod(text) / signed_number, 1, is_common ? 0.005 : 0.35) << text;
    }
  }
}

TEST(AmountsTest, SumsStayWithinTheirType) {
  EXPECT_EQ(AddUp(2, 3), 5);
  EXPECT_EQ(AddUp(INT64_MAX, INT64_MAX), INT64_MAX);
}

}  // namespace
}  // namespace fsdprun::top
