#include "worker/run/stop_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace fsdprun::worker {
namespace {

class StopListenerTest : public testing::Test {
 protected:
  StopListenerTest() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  ~StopListenerTest() override { close(ends_[0]); }

  void RequestStop(int64_t grace_ms) const {
    const std::string line =
        R"({"v":1,"type":"stop","grace_ms":)" + std::to_string(grace_ms) + "}\n";
    ASSERT_EQ(send(ends_[0], line.data(), line.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(line.size()));
  }

  int ends_[2];
};

TEST_F(StopListenerTest, NothingIsGivenUpWithoutARequest) {
  ControlChannel channel(ends_[1]);
  StopListener stop(channel);
  EXPECT_EQ(stop.Answer(), kGoOn);
  EXPECT_FALSE(stop.MustAbandonStep(1, 1'000'000, 3600));
  EXPECT_FALSE(stop.MustGiveUpSave());
}

TEST_F(StopListenerTest, StepThatDoesNotFitIntoTheGraceIsAbandoned) {
  ControlChannel channel(ends_[1]);
  StopListener stop(channel);
  RequestStop(60'000);
  EXPECT_EQ(stop.Answer(), kStop);
  // 9 forwards are left, of as many seconds as the first.
  EXPECT_FALSE(stop.MustAbandonStep(1, 10, /*seconds=*/1));
  EXPECT_TRUE(stop.MustAbandonStep(1, 10, /*seconds=*/7));
  // And the checkpoint after it.
  stop.NoteSave(std::chrono::seconds(55));
  EXPECT_TRUE(stop.MustAbandonStep(1, 10, /*seconds=*/1));
  stop.NoteSave(std::chrono::seconds(25));
  EXPECT_FALSE(stop.MustAbandonStep(1, 10, /*seconds=*/2));
  stop.SetSaving(true);  // And the one that is being written.
  EXPECT_TRUE(stop.MustAbandonStep(1, 10, /*seconds=*/2));
  stop.SetSaving(false);
  EXPECT_FALSE(stop.MustAbandonStep(1, 10, /*seconds=*/2));
  EXPECT_FALSE(stop.MustGiveUpSave());
}

TEST_F(StopListenerTest, SaveIsGivenUpWhenTheGraceIsOver) {
  ControlChannel channel(ends_[1]);
  StopListener stop(channel);
  RequestStop(1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!stop.MustGiveUpSave() && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_TRUE(stop.MustGiveUpSave());
}

/// As while a checkpoint is written beside the training; ThreadSanitizer looks on.
TEST_F(StopListenerTest, IsAskedByTwoThreads) {
  ControlChannel channel(ends_[1]);
  StopListener stop(channel);
  std::atomic<bool> has_given_up{false};
  std::thread saving([&] {
    while (!stop.MustGiveUpSave()) {
    }
    has_given_up = true;
  });
  for (int i = 0; i < 100; ++i) {
    stop.NoteStep(std::chrono::milliseconds(1));
    channel.SendProgress(i, 100, "");
    channel.TakeSave();
    stop.IsRequested();
  }
  RequestStop(1);
  saving.join();
  EXPECT_TRUE(has_given_up);
  EXPECT_TRUE(stop.IsRequested());
  char sent[8192];
  EXPECT_GT(recv(ends_[0], sent, sizeof sent, MSG_DONTWAIT), 0);
}

}  // namespace
}  // namespace fsdprun::worker
