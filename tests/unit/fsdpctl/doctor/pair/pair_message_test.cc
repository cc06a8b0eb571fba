#include "fsdpctl/doctor/pair/pair_message.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdprun::doctor {
namespace {

TEST(PairMessageTest, GoesAndComesBackByteByByte) {
  const Message message{"node", {{"name", "n=1"}, {"empty", ""}}};
  const std::string frame = Framed(message) + Framed({"next", {}});
  FrameBuffer buffer(kMostOfStranger);
  size_t taken = 0;
  std::optional<std::string> text;
  while (!(text = buffer.Take()).has_value()) {
    EXPECT_GE(buffer.Missing(), 1u);
    buffer.Append(frame.substr(taken++, 1));
  }
  EXPECT_EQ(ParseMessage(*text), message);
  EXPECT_EQ(taken, Framed(message).size());
}

TEST(PairMessageTest, MissingNeverReachesBehindTheFrame) {
  const std::string frame = Framed({"ping", {}});
  FrameBuffer buffer(kMostOfStranger);
  size_t taken = 0;
  while (!buffer.Take().has_value()) {
    const size_t missing = buffer.Missing();
    ASSERT_LE(taken + missing, frame.size());
    buffer.Append(frame.substr(taken, missing));
    taken += missing;
  }
  EXPECT_EQ(taken, frame.size());
}

TEST(PairMessageTest, TooLongFrames) {
  FrameBuffer buffer(10);
  buffer.Append(Framed({std::string(11, 'a'), {}}));
  EXPECT_TRUE(buffer.IsTooLong());
  EXPECT_FALSE(buffer.Take().has_value());
  buffer.Allow(100);
  EXPECT_FALSE(buffer.IsTooLong());
  EXPECT_TRUE(buffer.Take().has_value());
  FrameBuffer http2(kMostOfStranger);
  http2.Append("PRI * HTTP/2.0");
  EXPECT_TRUE(http2.IsTooLong());
}

TEST(PairMessageTest, WhatIsNoMessage) {
  EXPECT_FALSE(ParseMessage("").has_value());
  EXPECT_FALSE(ParseMessage("kind\nno equals").has_value());
  EXPECT_FALSE(ParseMessage("kind\n=value").has_value());
  EXPECT_EQ(ParseMessage("kind\nn=x")->Number("n"), 0);
  EXPECT_EQ(ParseMessage("kind\nn=-3")->Number("n"), -3);
}

TEST(PairMessageTest, AnyBytesAreTakenOrRefused) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random());
    }
    if (round % 2 == 0 && bytes.size() > 4) {
      bytes[0] = bytes[1] = bytes[2] = 0;  // A length that may be.
    }
    FrameBuffer buffer(kMostOfStranger);
    buffer.Append(bytes);
    while (const std::optional<std::string> text = buffer.Take()) {
      const std::optional<Message> message = ParseMessage(*text);
      EXPECT_TRUE(!message.has_value() || !message->kind.empty());
    }
    EXPECT_TRUE(buffer.IsTooLong() || buffer.Missing() >= 1);
  }
}

}  // namespace
}  // namespace fsdprun::doctor
