#include "launcher/directory/run_id_host.h"

#include <gtest/gtest.h>

#include "launcher/rpc/run_id_table.h"

namespace fsdprun {
namespace {

using Kind = RunIdClient::Kind;

HostMove AfterKind(Kind kind) { return MoveAfter(RunIdClient::Answer{kind, {}}); }

TEST(RunIdHostTest, OnlyAnEndpointThatDoesNotAnswerIsTakenOver) {
  EXPECT_EQ(MoveAfter(absl::UnavailableError("")), HostMove::kTakeOver);
  EXPECT_EQ(MoveAfter(absl::UnauthenticatedError("")), HostMove::kStay);
  EXPECT_EQ(MoveAfter(absl::UnimplementedError("")), HostMove::kStay);
}

TEST(RunIdHostTest, AnotherHostOfTheRunIdIsMet) {
  EXPECT_EQ(AfterKind(Kind::kHere), HostMove::kMeet);
  EXPECT_EQ(AfterKind(Kind::kThere), HostMove::kMeet);
  for (const Kind kind : {Kind::kYours, Kind::kClosed, Kind::kUnknown, Kind::kWait}) {
    EXPECT_EQ(AfterKind(kind), HostMove::kStay);
  }
}

TEST(RunIdHostTest, WhoeverDoesNotAnswerIsAskedLessOftenButBeforeNewcomersAreSentAway) {
  for (const absl::Status& error : {absl::UnavailableError(""), absl::UnauthenticatedError("")}) {
    Duration pause = PauseAfter(error, Duration::zero());
    EXPECT_GT(pause, Duration::zero());
    for (int i = 0; i < 10; ++i) {
      pause = PauseAfter(error, pause);
    }
    EXPECT_GE(pause, RunIdTable::kSettle / 2);
    EXPECT_LT(pause, RunIdTable::kSettle);
  }
  const Duration long_pause = std::chrono::seconds(1);
  EXPECT_EQ(PauseAfter(RunIdClient::Answer{Kind::kYours, {}}, long_pause), Duration::zero());
  EXPECT_GT(PauseAfter(RunIdClient::Answer{Kind::kThere, {}}, Duration::zero()), Duration::zero());
}

}  // namespace
}  // namespace fsdprun
