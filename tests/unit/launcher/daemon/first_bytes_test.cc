#include "launcher/daemon/first_bytes.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

class FirstBytesTest : public ::testing::Test {
 protected:
  // The end that is no daemon's.
  UniqueFd Connect() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    connections_.Add(UniqueFd(ends[0]));
    return UniqueFd(ends[1]);
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::vector<UniqueFd> heard_;
  std::vector<std::string> refused_;
  FirstBytes connections_{loop_,
                          {[this](UniqueFd connection) {
                             heard_.push_back(std::move(connection));
                             waiter_.Notice();
                           },
                           [this](const std::string& what) {
                             refused_.push_back(what);
                             waiter_.Notice();
                           }}};
};

TEST_F(FirstBytesTest, ASilentOneIsClosedAndTold) {
  const UniqueFd silent = Connect();
  ASSERT_TRUE(waiter_.RunUntil([this] { return !refused_.empty(); }));
  char byte = 0;
  EXPECT_EQ(::read(silent.get(), &byte, 1), 0);
  EXPECT_TRUE(heard_.empty());
}

TEST_F(FirstBytesTest, OneThatSpeaksIsHandedOnWithAllItSaid) {
  const UniqueFd silent = Connect();
  const UniqueFd caller = Connect();
  ASSERT_EQ(::write(caller.get(), "abc", 3), 3);
  ASSERT_TRUE(waiter_.RunUntil([this] { return !heard_.empty(); }));
  std::array<char, 4> said{};
  EXPECT_EQ(::read(heard_[0].get(), said.data(), said.size()), 3);
  EXPECT_TRUE(refused_.empty());
}

TEST_F(FirstBytesTest, OneThatHangsUpIsHandedOnToo) {
  Connect();
  ASSERT_TRUE(waiter_.RunUntil([this] { return !heard_.empty(); }));
  EXPECT_TRUE(refused_.empty());
}

}  // namespace
}  // namespace fsdprun
