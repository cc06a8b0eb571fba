#include "tests/sim/wire.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>

namespace fsdprun::sim {
namespace {

FromAgent Saying(AgentMessage message) {
  return {Incarnation(7), Generation(3), std::move(message)};
}

TEST(WireTest, WhatIsSentArrives) {
  WorkerExit exit;
  exit.local_rank = 1;
  exit.rank = 5;
  exit.pid = 1234;
  exit.stderr_tail = {"one", "two"};
  exit.after_stop = true;
  const absl::StatusOr<FromAgent> received = OverTheWire(Saying(WorkerExited{exit}));
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->generation, Generation(3));
  EXPECT_EQ(std::get<WorkerExited>(received->message).exit.stderr_tail.back(), "two");

  const ToAgent order{Incarnation(7), Generation(3), StopWorkers{15, Duration(5), "why"}};
  EXPECT_TRUE(OverTheWire(order).ok()) << OverTheWire(order).status();
}

TEST(WireTest, WhatIsLostOnTheWayIsNoticed) {
  // The codec cuts what is longer than any message may be.
  const std::string long_text(200'000, 'x');
  const absl::Status status =
      OverTheWire(Saying(NodeFaulted{CauseKind::kKeeperDied, long_text})).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status.code();
}

TEST(WireTest, WhatTheReceiverRefusesIsAnError) {
  WorkerExit exit;
  exit.exit_code = 300;
  const absl::Status status = OverTheWire(Saying(WorkerExited{exit})).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace fsdprun::sim
