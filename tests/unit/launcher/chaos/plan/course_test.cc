#include "launcher/chaos/plan/course.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Then = Course::Action;
using What = Course::Action::Kind;
using End = Campaign::End;

constexpr MonoTime kAt{std::chrono::seconds(1000)};
constexpr MonoTime kLater = kAt + std::chrono::seconds(1);
constexpr Then kStopCampaign{What::kStopCampaign};
constexpr Then kVerify{What::kVerify};
constexpr Then kDoneWith{What::kFinish};
constexpr Then EndJobBy(int signal) { return {What::kEndJob, signal}; }

TEST(CourseTest, OfAJobThatWasStartedHereTheEndIsWaitedForAndVerified) {
  Course course({.starts_job = true, .has_verify = true});
  EXPECT_THAT(course.OnCampaignEnd(End::kDone), IsEmpty());
  EXPECT_THAT(course.OnJobEnd(0, true), ElementsAre(kVerify));
  EXPECT_THAT(course.OnVerifyEnd(), ElementsAre(kDoneWith));
  EXPECT_FALSE(course.job_runs_on());
}

TEST(CourseTest, AJobThatRanAlreadyIsLeftRunning) {
  Course course({});
  EXPECT_THAT(course.OnCampaignEnd(End::kDone), ElementsAre(kDoneWith));
  EXPECT_TRUE(course.job_runs_on());
  Course waiting({.until_end = true});
  EXPECT_THAT(waiting.OnCampaignEnd(End::kDone), IsEmpty());
  EXPECT_THAT(waiting.OnJobEnd(0, true), ElementsAre(kDoneWith));
  EXPECT_FALSE(waiting.job_runs_on());
}

TEST(CourseTest, NothingIsVerifiedAfterAJobThatHasNotComeThrough) {
  Course failed({.starts_job = true, .has_verify = true});
  EXPECT_THAT(failed.OnJobEnd(3, true), ElementsAre(kDoneWith));
  Course bad({.starts_job = true, .has_verify = true});
  EXPECT_THAT(bad.OnJobEnd(0, false), ElementsAre(kDoneWith));
}

TEST(CourseTest, NothingIsVerifiedAfterAnEndThatNobodyKnows) {
  Course attached({.until_end = true, .has_verify = true});
  attached.OnCampaignEnd(End::kDone);
  EXPECT_THAT(attached.OnJobEnd(std::nullopt, false), ElementsAre(kDoneWith));
}

TEST(CourseTest, AJobThatDoesNotComeThroughIsEndedIfItWasStartedHere) {
  Course started({.starts_job = true});
  EXPECT_THAT(started.OnCampaignEnd(End::kNotSurvived), ElementsAre(EndJobBy(SIGTERM)));
  EXPECT_THAT(started.OnJobEnd(1, false), ElementsAre(kDoneWith));
  Course attached({.until_end = true});
  EXPECT_THAT(attached.OnCampaignEnd(End::kNotSurvived), ElementsAre(kDoneWith));
  EXPECT_TRUE(attached.job_runs_on());
}

TEST(CourseTest, ASignalLiftsAndEndsAndASecondOneKills) {
  Course course({.starts_job = true, .has_verify = true});
  EXPECT_THAT(course.OnSignal(SIGINT, kAt), ElementsAre(kStopCampaign, EndJobBy(SIGINT)));
  EXPECT_THAT(course.OnCampaignEnd(End::kStopped), IsEmpty());
  EXPECT_THAT(course.OnSignal(SIGINT, kLater), ElementsAre(Then{What::kKillJob}));
  EXPECT_TRUE(course.is_interrupted());
  EXPECT_THAT(course.OnJobEnd(0, true), ElementsAre(kDoneWith));  // Not verified.
}

/// A job that was started here, and that is to end in order.
Course Ending(Course::Options options = {.starts_job = true}) {
  Course course(options);
  EXPECT_THAT(course.OnSignal(SIGTERM, kAt), ElementsAre(kStopCampaign, EndJobBy(SIGTERM)));
  return course;
}

// timeout(1), a terminal that closes, a service manager.
TEST(CourseTest, WhatOneSenderSendsTwiceIsNoSecondSignal) {
  Course course = Ending();
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    EXPECT_THAT(course.OnSignal(signal, kAt + std::chrono::milliseconds(999)), IsEmpty());
  }
  EXPECT_THAT(course.OnSignal(SIGTERM, kLater), ElementsAre(Then{What::kKillJob}));
}

TEST(CourseTest, AVerificationIsNotKilledByASignalThatIsSentTwice) {
  Course course({.starts_job = true, .has_verify = true});
  course.OnCampaignEnd(End::kDone);
  course.OnJobEnd(0, true);
  EXPECT_THAT(course.OnSignal(SIGTERM, kAt), ElementsAre(Then{What::kEndVerify, SIGTERM}));
  EXPECT_THAT(course.OnSignal(SIGTERM, kAt), IsEmpty());
}

// A terminal, a limit: nobody sits there and waits.
TEST(CourseTest, WhatComesByItselfIsNoImpatience) {
  Course course = Ending();
  for (const int signal : {SIGHUP, SIGXCPU, SIGALRM}) {
    EXPECT_THAT(course.OnSignal(signal, kLater), IsEmpty()) << signal;
  }
  EXPECT_THAT(course.OnSignal(SIGQUIT, kLater), ElementsAre(Then{What::kKillJob}));
}

TEST(CourseTest, SlurmSendsSigtermAgainAndAgain) {
  Course course = Ending({.starts_job = true, .is_in_slurm = true});
  EXPECT_THAT(course.OnSignal(SIGTERM, kLater), IsEmpty());
  EXPECT_THAT(course.OnSignal(SIGUSR1, kLater), IsEmpty());
  EXPECT_THAT(course.OnSignal(SIGINT, kLater), ElementsAre(Then{What::kKillJob}));
}

TEST(CourseTest, ALimitEndsTheJobByASignalThatLaunchersKnow) {
  for (const int signal : {SIGALRM, SIGXCPU}) {
    Course course({.starts_job = true});
    EXPECT_THAT(course.OnSignal(signal, kAt), ElementsAre(kStopCampaign, EndJobBy(SIGTERM)));
    EXPECT_TRUE(course.is_interrupted());
  }
}

TEST(CourseTest, NoticesAreTheJobsAndEndOneOfSlurm) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    Course started({.starts_job = true});
    EXPECT_THAT(started.OnSignal(signal, kAt), ElementsAre(Then{What::kPassSignal, signal}));
    EXPECT_FALSE(started.is_interrupted());
    Course attached({});
    EXPECT_THAT(attached.OnSignal(signal, kAt), IsEmpty());
    EXPECT_FALSE(attached.is_interrupted());
    Course in_slurm({.starts_job = true, .is_in_slurm = true});
    EXPECT_THAT(in_slurm.OnSignal(signal, kAt), ElementsAre(kStopCampaign, EndJobBy(signal)));
  }
}

TEST(CourseTest, ASignalWhileTheEndIsWaitedForIsAnInterruption) {
  Course attached({.until_end = true, .has_verify = true});
  attached.OnCampaignEnd(End::kDone);
  EXPECT_THAT(attached.OnSignal(SIGTERM, kAt), ElementsAre(kStopCampaign, kDoneWith));
  EXPECT_TRUE(attached.is_interrupted());
  EXPECT_THAT(attached.OnSignal(SIGTERM, kLater), IsEmpty());
  Course started({.starts_job = true});
  started.OnCampaignEnd(End::kDone);
  EXPECT_THAT(started.OnSignal(SIGINT, kAt), ElementsAre(kStopCampaign, EndJobBy(SIGINT)));
  EXPECT_TRUE(started.is_interrupted());
}

TEST(CourseTest, SignalsReachWhatVerifies) {
  Course course({.starts_job = true, .has_verify = true});
  course.OnCampaignEnd(End::kDone);
  course.OnJobEnd(0, true);
  EXPECT_THAT(course.OnSignal(SIGINT, kAt), ElementsAre(Then{What::kEndVerify, SIGINT}));
  EXPECT_THAT(course.OnSignal(SIGINT, kLater), ElementsAre(Then{What::kKillVerify}));
  EXPECT_THAT(course.OnVerifyEnd(), ElementsAre(kDoneWith));
  EXPECT_TRUE(course.is_interrupted());
}

TEST(CourseTest, WhatThisProgramCannotDoEndsTheRunWithTheJob) {
  Course course({.starts_job = true, .has_verify = true});
  EXPECT_THAT(course.OnCannot(), ElementsAre(kStopCampaign));
  EXPECT_THAT(course.OnCampaignEnd(End::kStopped), IsEmpty());
  EXPECT_THAT(course.OnJobEnd(0, false), ElementsAre(kDoneWith));
}

}  // namespace
}  // namespace fsdprun::chaos
