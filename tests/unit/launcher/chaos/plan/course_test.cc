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
  EXPECT_THAT(course.OnSignal(SIGINT), ElementsAre(kStopCampaign, EndJobBy(SIGINT)));
  EXPECT_THAT(course.OnCampaignEnd(End::kStopped), IsEmpty());
  EXPECT_THAT(course.OnSignal(SIGINT), ElementsAre(Then{What::kKillJob}));
  EXPECT_TRUE(course.is_interrupted());
  EXPECT_THAT(course.OnJobEnd(0, true), ElementsAre(kDoneWith));  // Not verified.
}

TEST(CourseTest, ASignalWhileTheEndIsWaitedForIsAnInterruption) {
  Course attached({.until_end = true, .has_verify = true});
  attached.OnCampaignEnd(End::kDone);
  EXPECT_THAT(attached.OnSignal(SIGTERM), ElementsAre(kStopCampaign, kDoneWith));
  EXPECT_TRUE(attached.is_interrupted());
  EXPECT_THAT(attached.OnSignal(SIGTERM), IsEmpty());
  Course started({.starts_job = true});
  started.OnCampaignEnd(End::kDone);
  EXPECT_THAT(started.OnSignal(SIGINT), ElementsAre(kStopCampaign, EndJobBy(SIGINT)));
  EXPECT_TRUE(started.is_interrupted());
}

TEST(CourseTest, SignalsReachWhatVerifies) {
  Course course({.starts_job = true, .has_verify = true});
  course.OnCampaignEnd(End::kDone);
  course.OnJobEnd(0, true);
  EXPECT_THAT(course.OnSignal(SIGINT), ElementsAre(Then{What::kEndVerify, SIGINT}));
  EXPECT_THAT(course.OnSignal(SIGINT), ElementsAre(Then{What::kKillVerify}));
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
