#include "launcher/daemon/daemon_session.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

/// A session that has ended, as a daemon finds it.
class DaemonSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/daemon_session_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = pattern;
    std::ofstream(folder_ + "/alive");
    std::ofstream(folder_ + "/stderr");
    std::ofstream(folder_ + "/stdout") << text_;
    std::ofstream(folder_ + "/exit") << "3\n";
  }
  void TearDown() override { RemoveFolder(folder_); }

  DaemonSession Find(
      DaemonSession::Output output, std::function<void()> on_more = [] {}) {
    return DaemonSession(loop_, growth_, folder_, SessionProcess(), output,
                         {std::move(on_more), [] {}});
  }
  /// All that there is, shown as it comes, and where it begins.
  static std::pair<std::string, uint64_t> ReadAll(DaemonSession& session) {
    std::string text;
    std::optional<uint64_t> begin;
    while (const auto message = session.Take()) {
      if (!message->has_output()) {
        EXPECT_EQ(message->ended().code(), 3);
        continue;
      }
      begin = begin.value_or(message->output().offset());
      text += message->output().data();
      session.Shown(message->output().offset() + message->output().data().size(), 0);
    }
    return {text, begin.value_or(0)};
  }

  EventLoop loop_;
  FileGrowth growth_{loop_};
  std::string folder_;
  const std::string text_ = std::string((3u << 20) + 1234, 'x');
};

TEST_F(DaemonSessionTest, WhatAnEarlierDaemonHasGivenBackIsNotReadAsZeros) {
  {
    DaemonSession first = Find(DaemonSession::Output::kDropped);
    first.Follow(0, 0);
    EXPECT_EQ(ReadAll(first).first, text_);
  }
  DaemonSession second = Find(DaemonSession::Output::kDropped);
  second.Follow(0, 0);
  const auto [text, begin] = ReadAll(second);
  EXPECT_GE(begin, 2u << 20);
  EXPECT_EQ(text, text_.substr(begin));
}

TEST_F(DaemonSessionTest, OutputThatCannotBeOpenedNowIsReadLater) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit none = old;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  DaemonSession session = Find(DaemonSession::Output::kKept, [this] { loop_.Stop(); });
  EXPECT_FALSE(session.Take().has_value());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  loop_.Run();
  EXPECT_EQ(ReadAll(session).first, text_);
}

}  // namespace
}  // namespace fsdprun
