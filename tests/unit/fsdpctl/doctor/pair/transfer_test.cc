#include "fsdpctl/doctor/pair/transfer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/unique_fd.h"
#include "fsdpctl/doctor/pair/link.h"
#include "launcher/directory/listener.h"

namespace fsdprun::doctor {
namespace {

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() : stop_(::eventfd(0, EFD_CLOEXEC)) {
    const UniqueFd listener = BindListener({"127.0.0.1", 0}).value();
    const uint16_t port = PortOf(listener).value();
    one_ = ConnectTo({"127.0.0.1", port}, SegmentSize::kUsual, MonoNow() + std::chrono::seconds(30),
                     stop_.get())
               .value();
    EXPECT_TRUE(
        WaitFor(listener.get(), POLLIN, MonoNow() + std::chrono::seconds(30), stop_.get()).ok());
    other_ = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }

  const UniqueFd stop_;
  UniqueFd one_;
  UniqueFd other_;
};

TEST_F(TransferTest, WholeMessageAndNoByteMore) {
  const TransferSize size{.bytes = uint64_t{3} << 20};
  std::thread sender([&] { SendOver({one_.get()}, size, stop_.get()); });
  const Transferred moved = ReceiveOver({other_.get()}, size, stop_.get());
  sender.join();
  EXPECT_EQ(moved.bytes, size.bytes);
  EXPECT_FALSE(moved.stalled);
  EXPECT_GT(moved.bits_per_second(), 0);
  char byte = 0;
  EXPECT_EQ(::recv(other_.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_GT(CountSegments({one_.get()}).sent, 0u);
}

TEST_F(TransferTest, NothingComesIsAStall) {
  const Transferred moved = ReceiveOver({other_.get()}, {.bytes = 100}, stop_.get());
  EXPECT_TRUE(moved.stalled);
  EXPECT_EQ(moved.bytes, 0u);
  EXPECT_EQ(moved.bits_per_second(), 0);
}

TEST_F(TransferTest, EndsWithTheConnectionAndWithASignal) {
  one_.reset();
  EXPECT_FALSE(ReceiveOver({other_.get()}, {.bytes = 100}, stop_.get()).stalled);
  SendOver({other_.get()}, {.time = std::chrono::seconds(1)}, stop_.get());
  const uint64_t tick = 1;
  ASSERT_EQ(::write(stop_.get(), &tick, sizeof(tick)), 8);
  EXPECT_FALSE(ReceiveOver({other_.get()}, {.bytes = 100}, stop_.get()).stalled);
  EXPECT_TRUE(absl::IsCancelled(WaitFor(-1, 0, MonoNow() + std::chrono::seconds(30), stop_.get())));
}

}  // namespace
}  // namespace fsdprun::doctor
