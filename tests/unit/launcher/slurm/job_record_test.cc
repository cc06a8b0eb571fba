#include "launcher/slurm/job_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

// Of Slurm 22.05.8, for a job of two nodes and five minutes.
constexpr char kRunning[] =
    "JobId=1 JobName=sbatch UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 "
    "Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:00 TimeLimit=00:05:00 TimeMin=N/A "
    "SubmitTime=1795404836 EligibleTime=1795404836 AccrueTime=1795404836 StartTime=1795404837 "
    "EndTime=1795405137 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795404837 "
    "Scheduler=Backfill Partition=debug AllocNode:Sid=vm:20644 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=2 NumCPUs=2 NumTasks=2 "
    "CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,node=2,billing=2 Socks/Node=* "
    "NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0 "
    "Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) "
    "Network=(null) Command=(null) WorkDir=/tmp Comment=EndTime=1 a Restarts=7  StdErr=/tmp/1.out "
    "StdIn=/dev/null StdOut=/tmp/1.out Power= \n";

TEST(JobRecordTest, RunningJob) {
  const auto record = ReadJobRecord(absl::StrCat(kRunning, kRunning, "\n"));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(*record, (SlurmJobRecord{.state = "RUNNING",
                                     .phase = SlurmPhase::kRunning,
                                     .is_suspended = false,
                                     .reason = "None",
                                     .may_be_requeued = true,
                                     .restarts = 0,
                                     .start_time = 1795404837,
                                     .end_time = 1795405137,
                                     .preempt_time = std::nullopt}));
}

TEST(JobRecordTest, NamesAreNoFields) {
  for (const char* name : {"x Requeue=0", "x JobState=FAILED Restarts=9", "x Dependency=y",
                           "x JobState=FAILED Requeue=0 Dependency"}) {
    const auto record = ReadJobRecord(
        absl::StrReplaceAll(kRunning, {{"JobName=sbatch", absl::StrCat("JobName=", name)}}));
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->state, "RUNNING") << name;
    EXPECT_TRUE(record->may_be_requeued) << name;
    EXPECT_EQ(record->restarts, 0) << name;
  }
}

TEST(JobRecordTest, StatesOfJobsThatEndAndOfThoseThatDoNot) {
  const auto phase = [](const std::string& state) {
    return ReadJobRecord(absl::StrReplaceAll(kRunning, {{"JobState=RUNNING", "JobState=" + state}}))
        ->phase;
  };
  for (const char* state : {"SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "CONFIGURING"}) {
    EXPECT_EQ(phase(state), SlurmPhase::kRunning) << state;
  }
  for (const char* state : {"COMPLETING", "CANCELLED", "PENDING", "STAGE_OUT", "NODE_FAIL"}) {
    EXPECT_EQ(phase(state), SlurmPhase::kEnding) << state;
  }
  EXPECT_EQ(phase("DANCING"), SlurmPhase::kUnknown);
}

TEST(JobRecordTest, WhatDiffers) {
  const auto record = ReadJobRecord(absl::StrReplaceAll(
      kRunning, {{"JobState=RUNNING Reason=None", "JobState=COMPLETING Reason=TimeLimit"},
                 {"Requeue=1 Restarts=0", "Requeue=0 Restarts=3"},
                 {"EndTime=1795405137", "EndTime=Unknown"},
                 {"Deadline=N/A", "Deadline=N/A PreemptTime=1795405130"}}));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->state, "COMPLETING");
  EXPECT_EQ(record->reason, "TimeLimit");
  EXPECT_FALSE(record->may_be_requeued);
  EXPECT_EQ(record->restarts, 3);
  EXPECT_EQ(record->end_time, std::nullopt);
  EXPECT_EQ(record->preempt_time, 1795405130);
  EXPECT_TRUE(record->IsEndOfPreemption());
}

TEST(JobRecordTest, YearOfAJobWithoutALimitIsNone) {
  const std::string text =
      absl::StrReplaceAll(kRunning, {{"TimeLimit=00:05:00", "TimeLimit=UNLIMITED"}});
  EXPECT_EQ(ReadJobRecord(text)->end_time, std::nullopt);
  EXPECT_TRUE(ReadJobRecord(kRunning)->end_time.has_value());
  // Over, it has ended at that time.
  EXPECT_TRUE(
      ReadJobRecord(absl::StrReplaceAll(text, {{"JobState=RUNNING", "JobState=COMPLETING"}}))
          ->end_time.has_value());
}

TEST(JobRecordTest, OtherTextIsNamed) {
  for (const char* text : {"", "No jobs in the system\n", "JobId=1 JobState=RUNNING",
                           "JobId=1 JobState=RUNNING Restarts=many"}) {
    EXPECT_THAT(std::string(ReadJobRecord(text).status().message()), HasSubstr("is no record"))
        << text;
  }
}

TEST(JobRecordTest, TimesAreAskedForAsNumbers) {
  EXPECT_EQ(ShowJobEnvironment({{"A", "b"}}).at("SLURM_TIME_FORMAT"), "%s");
  EXPECT_EQ(ShowJobCommand("12_3").back(), "12_3");
}

}  // namespace
}  // namespace fsdprun
