#include "launcher/slurm/requeue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int64_t kRunStart = 1'000'000;

SlurmJobRecord Record(int64_t limit_s = 3600) {
  return {.state = "RUNNING",
          .phase = SlurmPhase::kRunning,
          .reason = "None",
          .may_be_requeued = true,
          .start_time = kRunStart,
          .end_time = kRunStart + limit_s};
}

SlurmJobRecord Ending(const std::string& reason = "None") {
  SlurmJobRecord record = Record();
  record.state = "COMPLETING";
  record.phase = SlurmPhase::kEnding;
  record.reason = reason;
  return record;
}

SlurmJobRecord Preempted(SlurmJobRecord record, int64_t ended_after_s = 0) {
  record.preempt_time = kRunStart + 100;
  if (record.phase == SlurmPhase::kEnding) {
    record.end_time = *record.preempt_time + ended_after_s;
  }
  return record;
}

// Of four workers that have done some steps and ended well when they were stopped.
RunEnd StoppedBy(int signal) {
  return {.kind = RunEnd::Kind::kStopped,
          .signal = signal,
          .first_step = 3,
          .step = 5,
          .total = 10,
          .workers = {.workers = 4, .well = 4}};
}

RunEnd WithoutProgress(RunEnd end) {
  end.first_step = end.step = end.total = -1;
  return end;
}

RunEnd WithoutSave(RunEnd end) {
  end.workers = {.workers = 4, .well = 1, .killed = 1, .failed = 1, .notes = {"rank 3 was killed"}};
  return end;
}

RequeueDecision Decide(RequeueMode mode, const RunEnd& end, const SlurmJobRecord& record,
                       int fruitless = 0) {
  return DecideRequeue(mode, end, record, 0, {.fruitless = fruitless});
}

TEST(RequeueTest, OneNoticeIsEnough) {
  EXPECT_TRUE(IsNews(0, SIGUSR1));
  EXPECT_TRUE(IsNews(0, SIGTERM));
  EXPECT_FALSE(IsNews(SIGUSR1, SIGUSR1));
  EXPECT_FALSE(IsNews(SIGUSR1, SIGTERM));
  EXPECT_FALSE(IsNews(SIGTERM, SIGUSR2));
  EXPECT_FALSE(IsNews(SIGTERM, SIGTERM));
  EXPECT_TRUE(IsNews(SIGUSR1, SIGINT));
}

TEST(RequeueTest, CauseIsWhatTheControllerSays) {
  const auto cause = [](int signal, const SlurmJobRecord& record, bool is_before_limit = false) {
    RunEnd end = StoppedBy(signal);
    end.is_before_limit = is_before_limit;
    return CauseOf(end, record, 1);
  };
  EXPECT_EQ(cause(SIGUSR1, Record()), StopCause::kNotice);
  EXPECT_EQ(cause(SIGTERM, Record()), StopCause::kSignalled);
  EXPECT_EQ(cause(SIGTERM, Record(), true), StopCause::kTimeLimit);
  EXPECT_EQ(cause(SIGTERM, Ending()), StopCause::kCancelled);
  EXPECT_EQ(cause(SIGUSR1, Ending()), StopCause::kCancelled);
  EXPECT_EQ(cause(SIGTERM, Ending(), true), StopCause::kCancelled);
  EXPECT_EQ(cause(SIGTERM, Ending("TimeLimit")), StopCause::kTimeLimit);
  SlurmJobRecord record = Preempted(Ending());
  EXPECT_EQ(cause(SIGTERM, record), StopCause::kPreempted);
  record.restarts = 2;
  EXPECT_EQ(cause(SIGTERM, record), StopCause::kRequeued);
}

TEST(RequeueTest, CancellationInTheGraceOfAPreemptionIsOne) {
  EXPECT_EQ(CauseOf(StoppedBy(SIGTERM), Preempted(Record()), 0), StopCause::kPreempted);
  EXPECT_EQ(CauseOf(StoppedBy(SIGTERM), Preempted(Ending(), 1), 0), StopCause::kPreempted);
  EXPECT_EQ(CauseOf(StoppedBy(SIGTERM), Preempted(Ending(), 20), 0), StopCause::kCancelled);
}

TEST(RequeueTest, StateThatNobodyKnowsRequeuesNothingAndIsTold) {
  SlurmJobRecord record = Record();
  record.state = "DANCING";
  record.phase = SlurmPhase::kUnknown;
  const RequeueDecision decision = Decide(RequeueMode::kAlways, StoppedBy(SIGUSR1), record);
  EXPECT_FALSE(decision.requeues);
  EXPECT_THAT(decision.text, HasSubstr("'DANCING'"));
}

TEST(RequeueTest, OnlyAnEndThatMayNotBeOneIsAskedAbout) {
  RunEnd end = StoppedBy(SIGTERM);
  EXPECT_TRUE(MayBeUnfinished(RequeueMode::kAuto, end));
  EXPECT_FALSE(MayBeUnfinished(RequeueMode::kNever, end));
  // A user's Ctrl-C, at which the controller need not answer.
  end.signal = SIGINT;
  EXPECT_FALSE(MayBeUnfinished(RequeueMode::kAlways, end));
  end.is_before_limit = true;
  EXPECT_TRUE(MayBeUnfinished(RequeueMode::kAuto, end));
  end = StoppedBy(SIGTERM);
  end.kind = RunEnd::Kind::kFailed;
  EXPECT_FALSE(MayBeUnfinished(RequeueMode::kAlways, end));
  // Workers that were told themselves, and ended well.
  end.kind = RunEnd::Kind::kSucceeded;
  EXPECT_TRUE(MayBeUnfinished(RequeueMode::kAuto, end));
  end.step = 10;
  EXPECT_FALSE(MayBeUnfinished(RequeueMode::kAlways, end));
  end = WithoutProgress(end);
  EXPECT_FALSE(MayBeUnfinished(RequeueMode::kAuto, end));
  EXPECT_TRUE(MayBeUnfinished(RequeueMode::kAlways, end));
  end.signal = SIGUSR1;
  EXPECT_TRUE(MayBeUnfinished(RequeueMode::kAuto, end));
  end.signal = 0;
  EXPECT_FALSE(MayBeUnfinished(RequeueMode::kAlways, end));
}

TEST(RequeueTest, NoticePreemptionAndTimeLimitRequeue) {
  const auto decide = [](const RunEnd& end, const SlurmJobRecord& record) {
    return Decide(RequeueMode::kAuto, end, record);
  };
  EXPECT_TRUE(decide(StoppedBy(SIGUSR1), Record()).requeues);
  EXPECT_EQ(decide(StoppedBy(SIGUSR2), Record()).text,
            "the job is requeued, because SIGUSR2 asked for it");
  EXPECT_TRUE(decide(StoppedBy(SIGTERM), Ending("TimeLimit")).requeues);
  EXPECT_FALSE(decide(StoppedBy(SIGTERM), Record()).requeues);
  EXPECT_THAT(decide(StoppedBy(SIGTERM), Ending()).text, IsEmpty());
  SlurmJobRecord preempted = Preempted(Ending());
  EXPECT_TRUE(decide(StoppedBy(SIGTERM), preempted).requeues);
  preempted.restarts = 1;
  EXPECT_FALSE(decide(StoppedBy(SIGTERM), preempted).requeues);
}

TEST(RequeueTest, SigtermToARunningJobAsksForAnotherRunIfThatIsAlwaysWanted) {
  const auto requeues = [](RequeueMode mode, int signal, const SlurmJobRecord& record) {
    return Decide(mode, StoppedBy(signal), record).requeues;
  };
  EXPECT_TRUE(requeues(RequeueMode::kAlways, SIGTERM, Record()));
  EXPECT_FALSE(requeues(RequeueMode::kAuto, SIGTERM, Record()));
  EXPECT_FALSE(requeues(RequeueMode::kAlways, SIGINT, Record()));
  EXPECT_FALSE(requeues(RequeueMode::kAlways, SIGTERM, Ending()));
}

TEST(RequeueTest, WhatCannotBeRequeuedSaysWhatToDo) {
  SlurmJobRecord record = Record();
  record.may_be_requeued = false;
  const RequeueDecision refused = Decide(RequeueMode::kAlways, StoppedBy(SIGUSR1), record);
  EXPECT_FALSE(refused.requeues);
  EXPECT_THAT(refused.text, HasSubstr("sbatch --requeue"));
}

TEST(RequeueTest, TimeLimitWantsStepsOrASave) {
  const auto at_limit = [](const RunEnd& end, RequeueMode mode = RequeueMode::kAuto) {
    return Decide(mode, end, Ending("TimeLimit"));
  };
  const RunEnd saved = WithoutProgress(StoppedBy(SIGTERM));
  EXPECT_TRUE(at_limit(saved).requeues);
  EXPECT_TRUE(at_limit(WithoutSave(StoppedBy(SIGTERM))).requeues);
  const RunEnd nothing = WithoutSave(saved);
  EXPECT_FALSE(at_limit(nothing).requeues);
  EXPECT_THAT(at_limit(nothing).text, HasSubstr("--requeue=always"));
  EXPECT_TRUE(at_limit(nothing, RequeueMode::kAlways).requeues);
  // One step, of a run that began where another had ended, is no step further than that.
  RunEnd one_step = nothing;
  one_step.first_step = one_step.step = 501;
  EXPECT_FALSE(at_limit(one_step).requeues);
  // Stopped before there were any workers.
  RunEnd no_world = nothing;
  no_world.workers = {};
  EXPECT_FALSE(at_limit(no_world).requeues);
}

TEST(RequeueTest, RunsThatBringTheJobNoFurtherHaveAnEnd) {
  const RunEnd end = WithoutSave(StoppedBy(SIGUSR1));
  EXPECT_TRUE(Decide(RequeueMode::kAuto, end, Record(), kMostFruitlessRuns - 1).requeues);
  const RequeueDecision last = Decide(RequeueMode::kAuto, end, Record(), kMostFruitlessRuns);
  EXPECT_FALSE(last.requeues);
  EXPECT_THAT(last.text, AllOf(HasSubstr("3 runs in a row"), HasSubstr("--requeue=always")));
}

TEST(RequeueTest, NoRunIsTheLastIfAnotherIsAlwaysWantedOrSlurmHasPreemptedTheJob) {
  const auto goes_on = [](const RequeueDecision& decision) {
    EXPECT_TRUE(decision.requeues);
    EXPECT_THAT(decision.text, EndsWith("; run 3 in a row without a sign of progress"));
  };
  goes_on(
      Decide(RequeueMode::kAlways, WithoutSave(StoppedBy(SIGUSR1)), Record(), kMostFruitlessRuns));
  const RunEnd preempted = WithoutSave(StoppedBy(SIGTERM));
  goes_on(Decide(RequeueMode::kAuto, preempted, Preempted(Record()), kMostFruitlessRuns));
  goes_on(Decide(RequeueMode::kAuto, preempted, Preempted(Ending()), kMostFruitlessRuns));
}

TEST(RequeueTest, RunsWithoutASignOfProgressAreNumbered) {
  const auto text = [](int fruitless) {
    return Decide(RequeueMode::kAuto, StoppedBy(SIGUSR1), Record(), fruitless).text;
  };
  EXPECT_THAT(text(0), EndsWith("because SIGUSR1 asked for it"));
  EXPECT_THAT(text(1),
              EndsWith("because SIGUSR1 asked for it; run 1 of 3 without a sign of progress"));
  EXPECT_THAT(text(2), EndsWith("; run 2 of 3 without a sign of progress"));
}

TEST(RequeueTest, LongRunsWithoutASignOfProgressAreToldAndHaveNoBound) {
  const RunEnd end = WithoutProgress(WithoutSave(StoppedBy(SIGUSR1)));
  const auto decide = [&end](const RunsInARow& runs) {
    return DecideRequeue(RequeueMode::kAuto, end, Record(), 0, runs);
  };
  EXPECT_THAT(decide({.silent = kMostFruitlessRuns - 1}).text, EndsWith("asked for it"));
  const RequeueDecision third = decide({.silent = kMostFruitlessRuns});
  EXPECT_TRUE(third.requeues);
  EXPECT_THAT(third.text, AllOf(HasSubstr("; run 3 in a row without a sign of progress, "),
                                HasSubstr("scancel ends the job")));
  EXPECT_TRUE(decide({.silent = 100}).requeues);
  EXPECT_THAT(decide({.fruitless = 1, .silent = 5}).text,
              EndsWith("run 1 of 3 without a sign of progress"));
}

TEST(RequeueTest, RunIsShortBesideItsLimitAndTheTimeBetweenSaves) {
  const auto is_short = [](int64_t passed, const SlurmJobRecord& record) {
    return IsShort(record, kRunStart + passed);
  };
  EXPECT_TRUE(is_short(599, Record()));
  EXPECT_FALSE(is_short(600, Record()));
  EXPECT_TRUE(is_short(59, Record(120)));
  EXPECT_FALSE(is_short(60, Record(120)));
  SlurmJobRecord unlimited = Record();
  unlimited.end_time.reset();
  EXPECT_TRUE(is_short(599, unlimited));
  EXPECT_FALSE(is_short(600, unlimited));
  // When a job is ending, end_time is that of its end.
  EXPECT_TRUE(is_short(599, Ending()));
  EXPECT_FALSE(is_short(30, Ending("TimeLimit")));
  SlurmJobRecord unknown = Record();
  unknown.start_time.reset();
  EXPECT_FALSE(is_short(10, unknown));
  // Slurm has ended it, whatever the program was about to do.
  EXPECT_FALSE(is_short(110, Preempted(Record())));
  EXPECT_FALSE(is_short(110, Preempted(Ending())));
}

TEST(RequeueTest, WorkersThatMayNotHaveSavedAreNamed) {
  const RunEnd end = WithoutSave(StoppedBy(SIGUSR1));
  EXPECT_THAT(
      Decide(RequeueMode::kAuto, end, Record()).text,
      AllOf(StartsWith("of 4 workers, 1 killed when the grace was over, 1 failed when they "
                       "were stopped, 1 lost with their nodes (rank 3 was killed; and more)"),
            HasSubstr("the job is requeued, because SIGUSR1 asked for it")));
  SlurmJobRecord requeued = Record();
  requeued.restarts = 1;
  EXPECT_THAT(Decide(RequeueMode::kAuto, end, requeued).text, HasSubstr("1 killed"));
}

TEST(RequeueTest, WorkersThatWereToldThemselvesAreAsThoseThatWereStopped) {
  RunEnd end = WithoutProgress(StoppedBy(SIGUSR1));
  end.kind = RunEnd::Kind::kSucceeded;
  EXPECT_TRUE(Decide(RequeueMode::kAuto, end, Record()).requeues);
  // A signal that was only passed on need not have ended them.
  end.was_passed_on = true;
  const RequeueDecision done = Decide(RequeueMode::kAuto, end, Record());
  EXPECT_FALSE(done.requeues);
  EXPECT_THAT(done.text, HasSubstr("--requeue=always"));
  EXPECT_TRUE(Decide(RequeueMode::kAlways, end, Record()).requeues);
  end.total = 10;
  end.step = 5;
  EXPECT_TRUE(Decide(RequeueMode::kAuto, end, Record()).requeues);
}

TEST(RequeueTest, NoticeIsObeyedUnaskedUnlessTheJobMayHaveBeenCancelled) {
  const RunEnd end = StoppedBy(SIGUSR1);
  EXPECT_TRUE(RequeuesUnasked(RequeueMode::kAuto, end, /*other_signal=*/false));
  EXPECT_FALSE(RequeuesUnasked(RequeueMode::kAuto, end, /*other_signal=*/true));
  EXPECT_FALSE(RequeuesUnasked(RequeueMode::kNever, end, false));
  EXPECT_FALSE(RequeuesUnasked(RequeueMode::kAuto, StoppedBy(SIGTERM), false));
  EXPECT_FALSE(RequeuesUnasked(RequeueMode::kAlways, WithoutProgress(WithoutSave(end)), false));
}

TEST(RequeueTest, RefusalsAreNotRepeated) {
  EXPECT_TRUE(IsRefusal("Requested operation is presently disabled for job 5"));
  EXPECT_TRUE(IsRefusal("Access/permission denied for job 5"));
  EXPECT_FALSE(IsRefusal("Socket timed out on send/recv operation"));
  EXPECT_FALSE(IsRefusal("Unable to contact slurm controller (connect failure)"));
}

TEST(RequeueTest, MarginIsTheGraceAndATimeForTheRest) {
  EXPECT_EQ(MarginOf({.seconds = {}, .grace_s = 30}, Record()), 60);
  EXPECT_EQ(MarginOf({.seconds = {}, .grace_s = 300}, Record()), 330);
  EXPECT_EQ(MarginOf({.seconds = {}, .grace_s = 300}, Record(120)), 60);
  EXPECT_EQ(MarginOf({.seconds = 600, .grace_s = 30}, Record(120)), 600);
  EXPECT_THAT(MarginWarning({.seconds = {}, .grace_s = 300}, Record()), IsEmpty());
  EXPECT_THAT(MarginWarning({.seconds = {}, .grace_s = 300}, Record(120)),
              HasSubstr("the job more time"));
  EXPECT_THAT(MarginWarning({.seconds = 60, .grace_s = 300}, Record()),
              AllOf(HasSubstr("--requeue-margin"), HasSubstr("300 s to save")));
}

TEST(RequeueTest, TimeLimitIsLookedAtAgainWhenTheMarginBeginsAndBefore) {
  const auto seconds = [](int64_t passed, const SlurmJobRecord& record, bool has_progress = true,
                          std::optional<int64_t> margin = std::nullopt,
                          RequeueMode mode = RequeueMode::kAuto) {
    return SecondsToLimit(mode, {.seconds = margin, .grace_s = 30}, record, kRunStart + passed,
                          has_progress);
  };
  EXPECT_EQ(seconds(10, Record()), 600);  // It may be shortened.
  EXPECT_EQ(seconds(3500, Record()), 40);
  EXPECT_EQ(seconds(3540, Record()), 0);
  EXPECT_EQ(seconds(2900, Record(), true, 600), 100);
  EXPECT_EQ(seconds(10, Record(60)), 20);       // Half a minute before.
  EXPECT_EQ(seconds(3540, Record(7200)), 600);  // The limit was extended.
  EXPECT_EQ(seconds(3540, Record(), false), 10);
  EXPECT_EQ(seconds(3540, Record(), false, std::nullopt, RequeueMode::kAlways), 0);
  EXPECT_EQ(seconds(10, Record(), true, std::nullopt, RequeueMode::kNever), std::nullopt);
  SlurmJobRecord record = Record();
  record.end_time.reset();
  EXPECT_EQ(seconds(10, record), 600);  // It may be given one.
  EXPECT_EQ(seconds(10, Ending()), std::nullopt);
  record = Record();
  record.may_be_requeued = false;
  EXPECT_EQ(seconds(10, record), std::nullopt);
}

TEST(RequeueTest, JobThatDoesNotRunNowIsLookedAtLater) {
  SlurmJobRecord suspended = Record();
  suspended.is_suspended = true;
  SlurmJobRecord unknown = Record();
  unknown.phase = SlurmPhase::kUnknown;
  for (const SlurmJobRecord& record : {suspended, unknown}) {
    EXPECT_EQ(SecondsToLimit(RequeueMode::kAuto, {}, record, kRunStart + 3599, true), 60);
  }
}

TEST(RequeueTest, ClockOfANodeThatIsBehindIsPutRight) {
  EXPECT_EQ(ControllerTime(Record(), kRunStart + 50, 40), kRunStart + 50);
  EXPECT_EQ(ControllerTime(Record(), kRunStart - 300, 40), kRunStart + 40);
}

}  // namespace
}  // namespace fsdprun
