#include "launcher/directory/run_id_host.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fsdprun
