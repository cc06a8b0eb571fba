#include "launcher/chaos/plan/length.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(LengthTest, WhatIsNoTimeIsRefused) {
  for (const char* text : {"", "s", "-1", "1x", "nan", "inf", "1e99", "2 3", "1.5.2s"}) {
    EXPECT_EQ(ParseLength(text), std::nullopt) << text;
  }
}

TEST(LengthTest, UnitsAreReadAndSecondsAreMeantWithoutOne) {
  EXPECT_EQ(ParseLength("2"), seconds(2));
  EXPECT_EQ(ParseLength("1.5s"), milliseconds(1500));
  EXPECT_EQ(ParseLength("200ms"), milliseconds(200));
  EXPECT_EQ(ParseLength("3min"), minutes(3));
  EXPECT_EQ(ParseLength("3m"), minutes(3));
  EXPECT_EQ(ParseLength("1h"), hours(1));
  EXPECT_EQ(ParseLength("0"), seconds(0));
}

TEST(LengthTest, ARangeIsOneTimeOrTwoInOrder) {
  EXPECT_EQ(ParseLengthRange("200ms:5s"), (LengthRange{milliseconds(200), seconds(5)}));
  EXPECT_EQ(ParseLengthRange("3"), (LengthRange{seconds(3), seconds(3)}));
  EXPECT_EQ(ParseLengthRange("5:2"), std::nullopt);
  EXPECT_EQ(ParseLengthRange("5:"), std::nullopt);
}

TEST(LengthTest, TextsAreForPeople) {
  EXPECT_EQ(LengthText(milliseconds(1250)), "1.25 s");
  EXPECT_EQ(LengthText(seconds(200)), "3 min 20 s");
  EXPECT_EQ(LengthText(minutes(125)), "2 h 5 min");
  EXPECT_EQ(LengthText(minutes(1)), "1 min");
  EXPECT_EQ(LengthText(minutes(60)), "1 h");
}

}  // namespace
}  // namespace fsdprun::chaos
