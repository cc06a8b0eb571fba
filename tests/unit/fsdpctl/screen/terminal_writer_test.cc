#include "fsdpctl/screen/terminal_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "base/unique_fd.h"

namespace fsdprun::top {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A terminal that nobody reads until a test does.
class TerminalWriterTest : public ::testing::Test {
 protected:
  TerminalWriterTest() {
    int master = -1;
    int terminal = -1;
    termios raw{};
    ::cfmakeraw(&raw);
    EXPECT_EQ(::openpty(&master, &terminal, nullptr, &raw, nullptr), 0);
    master_.reset(master);
    terminal_.reset(terminal);
    ::fcntl(master, F_SETFL, O_NONBLOCK);
  }

  /// What comes until it ends so.
  std::string ReadUntil(const std::string& end) const {
    std::string text;
    while (!absl::EndsWith(text, end)) {
      pollfd shown{.fd = master_.get(), .events = POLLIN};
      ::poll(&shown, 1, -1);
      text += Read();
    }
    return text;
  }
  /// What is there.
  std::string Read() const {
    std::string text;
    char piece[4096];
    for (ssize_t n = 0; (n = ::read(master_.get(), piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<size_t>(n));
    }
    return text;
  }

  UniqueFd master_;
  UniqueFd terminal_;
};

TEST_F(TerminalWriterTest, WritesAllThatTheTerminalTakes) {
  TerminalWriter writer(terminal_.get());
  writer.Add("one ");
  writer.Add("two");
  EXPECT_TRUE(writer.has_unwritten());
  writer.Flush();
  EXPECT_FALSE(writer.has_unwritten());
  EXPECT_EQ(ReadUntil("two"), "one two");
}

TEST_F(TerminalWriterTest, WaitsForNoReaderAndLosesNothing) {
  TerminalWriter writer(terminal_.get());
  std::string text;
  for (int i = 0; text.size() < 1 << 20; ++i) {
    text += std::to_string(i) + " ";
  }
  text += "!";
  writer.Add(text);
  writer.Flush();
  EXPECT_TRUE(writer.has_unwritten());
  std::string shown;
  while (writer.has_unwritten()) {
    shown += Read();
    writer.Flush();
    std::this_thread::yield();
  }
  shown += ReadUntil("!");
  EXPECT_EQ(shown, text);
}

TEST_F(TerminalWriterTest, InTheEndATerminalThatIsFullForgets) {
  TerminalWriter writer(terminal_.get());
  writer.Add(std::string(1 << 20, 'x'));
  const MonoTime begin = MonoNow();
  writer.Finish(milliseconds(50));
  EXPECT_GE(MonoNow() - begin, milliseconds(50));
  EXPECT_FALSE(writer.has_unwritten());
  // Would block for ever if there were no room.
  EXPECT_EQ(::write(terminal_.get(), "given back", 10), 10);
  ReadUntil("given back");
}

TEST_F(TerminalWriterTest, InTheEndATerminalThatIsStoppedGoesOn) {
  termios mode{};
  ASSERT_EQ(::tcgetattr(terminal_.get(), &mode), 0);
  mode.c_iflag |= IXON;
  mode.c_cc[VSTOP] = 'S' - '@';
  ASSERT_EQ(::tcsetattr(terminal_.get(), TCSANOW, &mode), 0);
  ASSERT_EQ(::write(master_.get(), "\x13", 1), 1);
  TerminalWriter writer(terminal_.get());
  pollfd stopped{.fd = terminal_.get(), .events = POLLOUT};
  while (::poll(&stopped, 1, 0) > 0) {  // Until it has heard of it.
    std::this_thread::yield();
  }
  writer.Add("frame");
  writer.Finish(milliseconds(1));
  EXPECT_EQ(::write(terminal_.get(), "given back", 10), 10);
  EXPECT_EQ(ReadUntil("given back"), "given back");
  ASSERT_EQ(::tcgetattr(terminal_.get(), &mode), 0);
  EXPECT_NE(mode.c_iflag & IXON, 0U);
}

TEST_F(TerminalWriterTest, FinishingWhereAllIsWrittenWaitsForNothing) {
  TerminalWriter writer(terminal_.get());
  writer.Add("x");
  const MonoTime begin = MonoNow();
  writer.Finish(seconds(3600));
  EXPECT_LT(MonoNow() - begin, seconds(60));
  EXPECT_EQ(ReadUntil("x"), "x");
}

TEST_F(TerminalWriterTest, OneThatIsGoneTakesNothing) {
  TerminalWriter writer(terminal_.get());
  master_.reset();
  writer.Add("x");
  writer.Flush();
  EXPECT_FALSE(writer.has_unwritten());
}

TEST_F(TerminalWriterTest, TheFlagsOfTheTerminalStay) {
  const TerminalWriter writer(terminal_.get());
  EXPECT_EQ(::fcntl(terminal_.get(), F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace fsdprun::top
