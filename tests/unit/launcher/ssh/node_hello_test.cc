#include "launcher/ssh/node_hello.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(NodeHelloTest, IsReadAsItIsWritten) {
  const std::string line = NodeHello({.protocol = 7, .release = "1.2.3"});
  ASSERT_EQ(line.back(), '\n');
  const auto read = ReadNodeHello(line.substr(0, line.size() - 1));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->protocol, 7u);
  EXPECT_EQ(read->release, "1.2.3");
}

TEST(NodeHelloTest, WhatALoginPrintsIsNone) {
  for (const char* line : {"", "Welcome to node1", "fsdprun-node-is-here", "fsdprun-node-is-here 2",
                           "fsdprun-node-is-here x 1.0", "fsdprun-node-is-here -1 1.0",
                           " fsdprun-node-is-here 2 1.0", "fsdprun-node-is-here 2 1.0 more"}) {
    EXPECT_FALSE(ReadNodeHello(line).has_value()) << line;
  }
}

TEST(NodeHelloTest, AnOrderOfAnyBytesIsFramed) {
  const std::string order("a\n\0b", 4);
  EXPECT_EQ(FramedOrder(order), "4\n" + order);
  EXPECT_EQ(ReadOrderSize("4"), 4u);
  EXPECT_EQ(FramedOrder(""), "0\n");
}

TEST(NodeHelloTest, ASizeThatNoLauncherSendsIsRefused) {
  EXPECT_EQ(ReadOrderSize("67108864"), kLargestSshOrder);
  for (const char* line : {"", " 4", "+4", "-4", "4x", "67108865", "99999999999999999999999"}) {
    EXPECT_EQ(ReadOrderSize(line), std::nullopt) << line;
  }
}

}  // namespace
}  // namespace fsdprun
