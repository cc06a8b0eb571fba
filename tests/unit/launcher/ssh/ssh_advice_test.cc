#include "launcher/ssh/ssh_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Described(int code, const std::string& last_words) {
  return DescribeSshEnd({{"node1", 2222}, code, last_words, "/opt/fsdprun"});
}

TEST(SshAdviceTest, EachTroubleHasItsOwnAdvice) {
  EXPECT_THAT(Described(255, "ada@node1: Permission denied (publickey).\n"),
              AllOf(HasSubstr("ssh to node1:2222 ended with code 255"),
                    HasSubstr("Permission denied (publickey)"), HasSubstr("ssh-copy-id")));
  EXPECT_THAT(Described(255, "Host key verification failed.\n"), HasSubstr("known_hosts"));
  EXPECT_THAT(Described(255, "ssh: connect to host node1 port 2222: Connection refused\n"),
              HasSubstr("HOST:PORT"));
  EXPECT_THAT(Described(255, "ssh: connect to host node1 port 2222: Connection timed out\n"),
              HasSubstr("firewall"));
  EXPECT_THAT(Described(127, "bash: line 1: /opt/fsdprun: No such file or directory\n"),
              AllOf(HasSubstr("there is no /opt/fsdprun there"), HasSubstr("--ssh-program")));
  EXPECT_THAT(Described(127, "/opt/fsdprun: error while loading shared libraries: libx.so\n"),
              HasSubstr("LD_LIBRARY_PATH"));
  EXPECT_THAT(Described(126, "bash: /opt/fsdprun: Permission denied\n"),
              AllOf(HasSubstr("cannot be run there"), Not(HasSubstr("ssh-copy-id"))));
  EXPECT_THAT(Described(2, "fsdprun: unknown option"), HasSubstr("the same release"));
}

TEST(SshAdviceTest, OnlyALoginThatNobodyHasLookedAtIsTurnedAway) {
  const auto is_turned_away = [](int code, const std::string& last_words) {
    return IsTurnedAway({{"node1", 22}, code, last_words, "/opt/fsdprun"});
  };
  const std::string words = "kex_exchange_identification: Connection closed by remote host\n";
  EXPECT_TRUE(is_turned_away(255, words));
  EXPECT_THAT(Described(255, words), HasSubstr("MaxStartups"));
  EXPECT_FALSE(is_turned_away(1, words));
  EXPECT_FALSE(is_turned_away(255, "ada@node1: Permission denied (publickey).\n"));
  EXPECT_FALSE(is_turned_away(255, "ssh: connect to host node1: Connection refused\n"));
  // Behind a jump host.
  EXPECT_FALSE(is_turned_away(255, "ada@bastion: Permission denied (publickey).\n" + words));
  EXPECT_FALSE(
      is_turned_away(255, "channel 0: open failed: connect failed: Connection refused\n" + words));
}

TEST(SshAdviceTest, WhatNobodyKnowsIsToBeTried) {
  EXPECT_THAT(Described(137, ""),
              AllOf(HasSubstr("code 137, without a word"), EndsWith("works without a question")));
}

TEST(SshAdviceTest, OnlyTheLastLinesAreShownAndNoControlCharacters) {
  EXPECT_EQ(LastLines("a\nb\r\n\nc\nd"), "b / c / d");
  EXPECT_EQ(LastLines("\x1b[2J"), "?[2J");
  EXPECT_EQ(LastLines(std::string(5000, 'x')).size(), 600u);
  EXPECT_EQ(LastLines(""), "");
}

}  // namespace
}  // namespace fsdprun
