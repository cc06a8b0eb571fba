#include "launcher/report/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/eventfd.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace fsdprun {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  std::string ReadAll() {
    write.reset();
    std::string all;
    char buffer[4096];
    ssize_t n = 0;
    while ((n = ::read(read.get(), buffer, sizeof(buffer))) > 0) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }
  UniqueFd read;
  UniqueFd write;
};

/// A pseudoterminal whose leader is never read.
struct Terminal {
  Terminal() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
    leader.reset(ends[0]);
    follower.reset(ends[1]);
  }
  UniqueFd leader;
  UniqueFd follower;
};

/// Polls as writable, and yet blocks whoever writes eight bytes of text to it: like a pipe that
/// another program fills between the poll and the write, which cannot be timed.
struct Clogged {
  Clogged() : fd(::eventfd(0, EFD_CLOEXEC)) {
    const uint64_t nearly_full = UINT64_MAX - 2;
    EXPECT_EQ(::write(fd.get(), &nearly_full, sizeof(nearly_full)), 8);
  }
  void Unclog() const {
    uint64_t count = 0;
    EXPECT_EQ(::read(fd.get(), &count, sizeof(count)), 8);
  }
  UniqueFd fd;
};

TEST(ConsoleTest, StreamsStayApartAndLinesEnd) {
  Pipe out;
  Pipe error;
  {
    Console console({.out_fd = out.write.get(), .error_fd = error.write.get()});
    console.WriteLines(ConsoleStream::kOut, "one\n");
    console.WriteLines(ConsoleStream::kError, "two");
    console.WriteLines(ConsoleStream::kOut, "three");
    console.Close(MonoNow() + kLong);
  }
  EXPECT_EQ(out.ReadAll(), "one\nthree\n");
  EXPECT_EQ(error.ReadAll(), "two\n");
}

TEST(ConsoleTest, ProgressLineIsErasedBeforeALineAndAtTheEnd) {
  Pipe error;
  {
    Console console({.out_fd = error.write.get(),
                     .error_fd = error.write.get(),
                     .draws_progress = true,
                     .width = 6});
    console.SetProgress("step 1 of many");
    char drawn[10];
    ASSERT_EQ(::read(error.read.get(), drawn, sizeof(drawn)), 10);
    EXPECT_EQ(std::string(drawn, 10), "\r\x1b[2Kstep ") << "cut to the width";
    console.WriteLines(ConsoleStream::kOut, "line");
    console.Close(MonoNow() + kLong);
  }
  const std::string rest = error.ReadAll();
  EXPECT_EQ(rest.find("\r\x1b[2Kline\n"), 0u) << rest;
  EXPECT_TRUE(rest == "\r\x1b[2Kline\n" || rest.substr(rest.size() - 5) == "\r\x1b[2K") << rest;
}

TEST(ConsoleTest, SlowReaderBlocksNoProducerAndRoomIsReported) {
  Pipe out;
  std::promise<void> has_room_again;
  Console console({.out_fd = out.write.get(), .error_fd = out.write.get(), .room_bytes = 1 << 20},
                  [&has_room_again] { has_room_again.set_value(); });
  const std::string line(1000, 'x');
  for (int i = 0; i < 2000; ++i) {
    console.WriteLines(ConsoleStream::kOut, line);
  }
  EXPECT_FALSE(console.HasRoom(ConsoleStream::kOut));
  EXPECT_FALSE(console.HasRoom(ConsoleStream::kError)) << "it is the same pipe";
  size_t got = 0;
  std::thread reader([&out, &got] {
    char buffer[65536];
    while (got < 2000u * 1001u) {
      got += static_cast<size_t>(::read(out.read.get(), buffer, sizeof(buffer)));
    }
  });
  has_room_again.get_future().wait();
  console.Close(MonoNow() + kLong);
  reader.join();
  EXPECT_EQ(got, 2000u * 1001u);
}

TEST(ConsoleTest, ABlockedStandardOutputDoesNotHoldUpStandardError) {
  Pipe out;
  Pipe error;
  Console console({.out_fd = out.write.get(), .error_fd = error.write.get()});
  console.WriteLines(ConsoleStream::kOut, std::string(2 << 20, 'x'));
  EXPECT_FALSE(console.HasRoom(ConsoleStream::kOut));
  EXPECT_TRUE(console.HasRoom(ConsoleStream::kError));
  console.WriteLines(ConsoleStream::kError, "heard");
  char heard[6];
  EXPECT_EQ(::read(error.read.get(), heard, sizeof(heard)), 6);
  console.WaitForRoom(MonoNow() + std::chrono::milliseconds(1));  // Of standard output.
  EXPECT_FALSE(console.WaitWritten(MonoNow()));
  EXPECT_EQ(console.ProgressOf(ConsoleStream::kOut).queued, (2u << 20) + 1);  // With a newline.
  EXPECT_EQ(console.ProgressOf(ConsoleStream::kOut).written, 0u);
}

// For streams that nobody reads: Close() returns only if it gives up. How soon after the deadline
// is not checked, because a busy machine may delay any return.
void ExpectCloseAtTheDeadline(Console& console) {
  const MonoTime deadline = MonoNow() + std::chrono::milliseconds(50);
  console.Close(deadline);
  EXPECT_GE(MonoNow(), deadline) << "gave up before the deadline";
}

TEST(ConsoleTest, CloseGivesUpOnAPipeThatNobodyReadsAtTheDeadline) {
  Pipe out;
  Console console({.out_fd = out.write.get(), .error_fd = out.write.get()});
  console.WriteLines(ConsoleStream::kOut, std::string(1 << 20, 'x'));
  ExpectCloseAtTheDeadline(console);
}

TEST(ConsoleTest, CloseGivesUpOnATerminalThatNobodyReadsAtTheDeadline) {
  for (const size_t first : {1u, 2u, 3u, 4096u}) {
    const Terminal terminal;
    Console console({.out_fd = terminal.follower.get(), .error_fd = terminal.follower.get()});
    console.WriteLines(ConsoleStream::kOut, std::string(first, 'x'));
    console.WriteLines(ConsoleStream::kOut, std::string(1 << 20, '\n'));
    ExpectCloseAtTheDeadline(console);
    EXPECT_EQ(::fcntl(terminal.follower.get(), F_GETFL) & O_NONBLOCK, 0)
        << "shared with other programs";
  }
}

// The terminal belongs to another user, as after su, and cannot be opened again.
TEST(ConsoleTest, CloseGivesUpOnATerminalThatCannotBeReopenedAtTheDeadline) {
  for (const size_t first : {1u, 2u, 3u, 4096u}) {
    const Terminal terminal;
    ASSERT_EQ(::fchmod(terminal.follower.get(), 0), 0);
    const int user = ::setfsuid(65534);  // Root may open everything.
    Console console({.out_fd = terminal.follower.get(), .error_fd = terminal.follower.get()});
    ::setfsuid(user);
    console.WriteLines(ConsoleStream::kOut, std::string(first, 'x'));
    console.WriteLines(ConsoleStream::kOut, std::string(1 << 20, '\n'));
    console.WriteLines(ConsoleStream::kError, "the report");
    ExpectCloseAtTheDeadline(console);
  }
}

TEST(ConsoleTest, CloseInterruptsAWriteThatNeverReturns) {
  Clogged out;
  Pipe error;
  Console console({.out_fd = out.fd.get(), .error_fd = error.write.get()});
  console.WriteLines(ConsoleStream::kError, "first");
  console.WriteLines(ConsoleStream::kOut, "1234567\n");
  char first[6];
  ASSERT_EQ(::read(error.read.get(), first, sizeof(first)), 6) << "the blocked line comes next";
  console.WriteLines(ConsoleStream::kError, "the report");
  std::future<void> close = std::async(std::launch::async, [&] { console.Close(MonoNow()); });
  const bool has_closed = close.wait_for(kLong) == std::future_status::ready;
  if (!has_closed) {
    out.Unclog();  // Lets a Close() that waits for the writer return, so that the test can fail.
  }
  close.get();
  EXPECT_TRUE(has_closed);
  EXPECT_EQ(error.ReadAll(), "the report\n") << "what does not block is still written";
}

TEST(ConsoleTest, ClosedPipeIsNoError) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe out;
  Pipe error;
  out.read.reset();
  Console console({.out_fd = out.write.get(), .error_fd = error.write.get()});
  console.WriteLines(ConsoleStream::kOut, "lost");
  console.WriteLines(ConsoleStream::kError, "kept");
  EXPECT_TRUE(console.WaitWritten(ConsoleStream::kOut, MonoNow() + kLong));
  EXPECT_TRUE(console.HasDropped(ConsoleStream::kOut)) << "though that is no failure";
  console.Close(MonoNow() + kLong);
  EXPECT_EQ(error.ReadAll(), "kept\n");
  EXPECT_FALSE(console.has_failed());
  EXPECT_FALSE(console.HasDropped(ConsoleStream::kError));
}

TEST(ConsoleTest, AStreamIsWaitedForWhoeverReadsTheOther) {
  Pipe out;
  Pipe error;
  Console console({.out_fd = out.write.get(), .error_fd = error.write.get()});
  console.WriteLines(ConsoleStream::kError, std::string(2 << 20, 'x'));  // Nobody reads it.
  console.WriteLines(ConsoleStream::kOut, "heard");
  EXPECT_TRUE(console.WaitWritten(ConsoleStream::kOut, MonoNow() + kLong));
  EXPECT_FALSE(console.HasDropped(ConsoleStream::kOut));
  console.Close(MonoNow());
  EXPECT_TRUE(console.HasDropped(ConsoleStream::kError));
}

TEST(ConsoleTest, AFullDiskIsToldOfOnceAndIsAnError) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  Pipe error;
  std::vector<int> failures;
  Console console({.out_fd = full.get(), .error_fd = error.write.get()}, nullptr,
                  [&failures](int code) { failures.push_back(code); });
  EXPECT_FALSE(console.has_failed());
  for (const char* lines : {"one\n", "two\n"}) {
    console.WriteLines(ConsoleStream::kOut, lines);
    EXPECT_TRUE(console.WaitWritten(MonoNow() + kLong)) << "what is lost takes no room";
  }
  console.WriteLines(ConsoleStream::kError, "kept");
  console.Close(MonoNow() + kLong);
  EXPECT_EQ(failures, std::vector<int>{ENOSPC});
  EXPECT_TRUE(console.has_failed());
  EXPECT_EQ(error.ReadAll(), "kept\n");
}

/// A stream that a test fills up and makes room for.
class FillableStream {
 public:
  FillableStream() : full_(::open("/dev/full", O_WRONLY | O_CLOEXEC)) {
    MakeRoom();
    EXPECT_TRUE(full_.valid());
  }
  /// Nobody must be writing.
  void FillUp() const { EXPECT_EQ(::dup2(full_.get(), fd_.get()), fd_.get()); }
  void MakeRoom() {
    if (!fd_.valid()) {
      fd_.reset(::fcntl(pipe_.write.get(), F_DUPFD_CLOEXEC, 0));
    } else {
      EXPECT_EQ(::dup2(pipe_.write.get(), fd_.get()), fd_.get());
    }
  }
  int fd() const { return fd_.get(); }
  std::string ReadAll() {
    fd_.reset();
    return pipe_.ReadAll();
  }

 private:
  Pipe pipe_;
  UniqueFd full_;
  UniqueFd fd_;
};

TEST(ConsoleTest, ADiskThatHasRoomAgainIsWrittenToAndHasALineAboutTheGap) {
  FillableStream log;
  std::vector<int> failures;
  Pipe error;
  Console console({.out_fd = log.fd(), .error_fd = error.write.get()}, nullptr,
                  [&failures](int code) { failures.push_back(code); });
  const auto say = [&console](const char* line) {
    console.WriteLines(ConsoleStream::kOut, line);
    EXPECT_TRUE(console.WaitWritten(ConsoleStream::kOut, MonoNow() + kLong));
  };
  for (int i = 0; i < 2; ++i) {
    say("before");
    log.FillUp();
    say("lost");
    say("lost, too");
    log.MakeRoom();
  }
  say("after");
  EXPECT_EQ(console.ProgressOf(ConsoleStream::kOut).dropped, 2u * 15);
  EXPECT_TRUE(console.has_failed()) << "something is lost for good";
  console.Close(MonoNow() + kLong);
  const std::string gap = "[15 bytes of output are missing here: No space left on device]\n";
  EXPECT_EQ(log.ReadAll(), "before\n" + gap + "before\n" + gap + "after\n");
  EXPECT_EQ(failures, std::vector<int>{ENOSPC}) << "told of once";
}

TEST(ConsoleChannelTest, AGapIsOnALineOfItsOwnAlsoAtTheEnd) {
  FillableStream log;
  ConsoleChannel channel(log.fd(), {}, {});
  channel.Write("half a li");
  ASSERT_TRUE(channel.WaitWritten(MonoNow() + kLong));
  log.FillUp();
  channel.Write("ne\n");
  ASSERT_TRUE(channel.WaitWritten(MonoNow() + kLong));
  log.MakeRoom();
  channel.Close(MonoNow() + kLong);
  EXPECT_EQ(log.ReadAll(),
            "half a li\n[3 bytes of output are missing here: No space left on device]\n");
}

TEST(ConsoleTest, AReaderThatHasGoneDoesNotComeBack) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe gone;
  gone.read.reset();
  FillableStream log;
  ASSERT_EQ(::dup2(gone.write.get(), log.fd()), log.fd());
  Console console({.out_fd = log.fd(), .error_fd = log.fd()});
  console.WriteLines(ConsoleStream::kOut, "lost");
  EXPECT_TRUE(console.WaitWritten(MonoNow() + kLong));
  log.MakeRoom();
  console.WriteLines(ConsoleStream::kOut, "lost, too");
  console.Close(MonoNow() + kLong);
  EXPECT_EQ(log.ReadAll(), "");
}

TEST(ConsoleTest, AFullDiskOfBothStreamsIsAnErrorThatNobodyCanBeToldOf) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  Console console({.out_fd = full.get(), .error_fd = full.get()}, nullptr,
                  [](int) { ADD_FAILURE(); });
  console.WriteLines(ConsoleStream::kOut, "lost");
  console.Close(MonoNow() + kLong);
  EXPECT_TRUE(console.has_failed());
}

}  // namespace
}  // namespace fsdprun
