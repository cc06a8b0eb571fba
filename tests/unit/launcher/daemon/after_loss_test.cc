#include "launcher/daemon/after_loss.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

constexpr Duration kNow = Duration::zero();

TEST(AfterLossTest, ADaemonThatRefusesIsNotAskedAgain) {
  for (const absl::Status& why :
       {absl::ResourceExhaustedError(""), absl::UnauthenticatedError(""),
        absl::PermissionDeniedError(""), absl::InvalidArgumentError(""), absl::NotFoundError(""),
        absl::FailedPreconditionError(""), absl::AbortedError("")}) {
    EXPECT_EQ(AfterLossOf(why, /*runs_session=*/false, kNow), AfterLoss::kGiveUp) << why;
    EXPECT_EQ(AfterLossOf(why, /*runs_session=*/true, kNow), AfterLoss::kGiveUp) << why;
  }
  // It could not start the session.
  EXPECT_EQ(AfterLossOf(absl::InternalError(""), false, kNow), AfterLoss::kGiveUp);
}

TEST(AfterLossTest, AtTheStartADaemonIsWaitedForForAWhile) {
  const absl::Status away = absl::UnavailableError("refused");
  EXPECT_EQ(AfterLossOf(away, false, kNow), AfterLoss::kRedial);
  EXPECT_EQ(AfterLossOf(away, false, kDialPatience - Duration(1)), AfterLoss::kRedial);
  EXPECT_EQ(AfterLossOf(away, false, kDialPatience), AfterLoss::kGiveUp);
}

TEST(AfterLossTest, ADaemonThatRunsASessionIsCalledAgainHoweverLongItIsAway) {
  for (const absl::Status& away : {absl::UnavailableError(""), absl::CancelledError(""),
                                   absl::DeadlineExceededError(""), absl::InternalError("reset")}) {
    EXPECT_EQ(AfterLossOf(away, true, std::chrono::hours(1)), AfterLoss::kRedial) << away;
  }
}

}  // namespace
}  // namespace fsdprun
