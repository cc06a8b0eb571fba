#include "launcher/ssh/ssh_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

size_t IndexOf(const std::vector<std::string>& words, const std::string& word) {
  return static_cast<size_t>(std::find(words.begin(), words.end(), word) - words.begin());
}

TEST(SshCommandTest, TheLastWordIsOneCommandForTheShell) {
  const auto words = SshCommand({}, {"node1", 22}, "/a b/it's $x");
  EXPECT_EQ(words.front(), "ssh");
  EXPECT_EQ(words[words.size() - 2], "node1");
  EXPECT_EQ(words.back(), R"(exec '/a b/it'\''s $x' --ssh-node)");
  EXPECT_THAT(words, Contains("-oBatchMode=yes"));
  EXPECT_THAT(words, Not(Contains(StartsWith("-p"))));
}

TEST(SshCommandTest, TheUsersWordsCountBeforeOurs) {
  const auto words =
      SshCommand({.command = {"my-ssh", "-oConnectTimeout=1"}}, {"ada@node1", 2222}, "fsdprun");
  EXPECT_EQ(words.front(), "my-ssh");
  EXPECT_LT(IndexOf(words, "-oConnectTimeout=1"), IndexOf(words, "-oConnectTimeout=20"));
  EXPECT_LT(IndexOf(words, "-p2222"), IndexOf(words, "ada@node1"));
}

TEST(SshCommandTest, SshHasNoToken) {
  const Environment environment =
      SshEnvironment({{"FSDPRUN_TOKEN", "t"}, {"SSH_AUTH_SOCK", "/agent"}});
  EXPECT_EQ(environment, (Environment{{"SSH_AUTH_SOCK", "/agent"}}));
}

TEST(SshCommandTest, QuotedWords) {
  EXPECT_EQ(LoginShellWord(""), "''");
  EXPECT_EQ(LoginShellWord("'"), R"(''\''')");
  EXPECT_EQ(LoginShellWord("a\nb\\\"`"), "'a\nb\\\"`'");
}

}  // namespace
}  // namespace fsdprun
