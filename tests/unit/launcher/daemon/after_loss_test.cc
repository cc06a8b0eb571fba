#include "launcher/daemon/after_loss.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

constexpr Duration kNow = Duration::zero();
constexpr bool kMore = true;
constexpr bool kNoMore = false;

TEST(AfterLossTest, ADaemonThatRefusesIsNotAskedAgain) {
  for (const absl::Status& why :
       {absl::ResourceExhaustedError(""), absl::UnauthenticatedError(""),
        absl::PermissionDeniedError(""), absl::InvalidArgumentError(""), absl::NotFoundError(""),
        absl::FailedPreconditionError(""), absl::AbortedError("")}) {
    EXPECT_EQ(AfterLossOf(why, /*runs_session=*/false, kMore, kNow), AfterLoss::kGiveUp) << why;
    EXPECT_EQ(AfterLossOf(why, /*runs_session=*/true, kMore, kNow), AfterLoss::kGiveUp) << why;
  }
  // It could not start the session.
  EXPECT_EQ(AfterLossOf(absl::InternalError(""), false, kMore, kNow), AfterLoss::kGiveUp);
}

TEST(AfterLossTest, AtTheStartADaemonIsWaitedForForAWhile) {
  const absl::Status away = absl::UnavailableError("refused");
  EXPECT_EQ(AfterLossOf(away, false, kNoMore, kNow), AfterLoss::kRedial);
  EXPECT_EQ(AfterLossOf(away, false, kNoMore, kDialPatience - Duration(1)), AfterLoss::kRedial);
  EXPECT_EQ(AfterLossOf(away, false, kNoMore, kDialPatience), AfterLoss::kGiveUp);
}

TEST(AfterLossTest, EachAddressOfADaemonIsTried) {
  // The first one takes all of the patience if nobody answers there.
  const absl::Status silent = absl::UnavailableError("no answer within 10 s");
  EXPECT_EQ(AfterLossOf(silent, false, kMore, std::chrono::seconds(10)), AfterLoss::kRedial);
  EXPECT_EQ(AfterLossOf(silent, false, kNoMore, std::chrono::seconds(20)), AfterLoss::kGiveUp);
}

TEST(AfterLossTest, ADaemonThatRunsASessionIsCalledAgainHoweverLongItIsAway) {
  for (const absl::Status& away : {absl::UnavailableError(""), absl::CancelledError(""),
                                   absl::DeadlineExceededError(""), absl::InternalError("reset")}) {
    EXPECT_EQ(AfterLossOf(away, true, kNoMore, std::chrono::hours(1)), AfterLoss::kRedial) << away;
  }
}

}  // namespace
}  // namespace fsdprun
