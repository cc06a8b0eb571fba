#include "launcher/daemon/call_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CallAdviceTest, WhereNothingListensADaemonIsToBeStarted) {
  EXPECT_THAT(
      WithAdvice(absl::UnavailableError(
          "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to "
          "connect to remote host: Connection refused")),
      AllOf(HasSubstr("nothing listens there"), HasSubstr("start fsdp-agent --daemon"),
            Not(HasSubstr("UNKNOWN"))));
}

TEST(CallAdviceTest, WhoDoesNotAnswerIsToBeLookedAt) {
  EXPECT_THAT(WithAdvice(absl::UnavailableError("no answer within 10 s")),
              AllOf(HasSubstr("no answer within 10 s; see whether fsdp-agent --daemon runs"),
                    HasSubstr("reaches it")));
}

TEST(CallAdviceTest, WhoHasAnotherTokenIsToldHowToGiveOne) {
  EXPECT_THAT(WithAdvice(absl::UnauthenticatedError("the job's token is missing or wrong")),
              HasSubstr("missing or wrong; give this launcher and the daemon the same token"));
}

TEST(CallAdviceTest, TheDaemonsOwnReasonSaysWhatToDo) {
  EXPECT_EQ(WithAdvice(absl::ResourceExhaustedError("take other nodes")), "take other nodes");
}

}  // namespace
}  // namespace fsdprun
