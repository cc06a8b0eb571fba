#include "launcher/chaos/plan/households.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kServiceManager = 7;
constexpr uint64_t kStartTicks = 1;

/// A machine with jobs.
class HouseholdsTest : public ::testing::Test {
 protected:
  void Put(int64_t pid, int64_t parent, const std::string& name) {
    seen_.push_back({.pid = pid, .parent = parent, .start_ticks = kStartTicks, .name = name});
  }
  void PutWorker(int64_t pid, int64_t parent, const std::string& job, int rank) {
    Put(pid, parent, "python3");
    seen_.back().worker = WorkerMarks{.job_id = job, .rank = rank};
  }
  /// `agent`, its keeper, whose pid is the next, and two workers from `rank` on.
  void PutNode(int64_t agent, const std::string& name, const std::string& job, int rank) {
    Put(agent, 1, name);
    Put(agent + 1, agent, "fsdp-keeper");
    PutWorker(agent + 2, agent + 1, job, rank);
    PutWorker(agent + 3, agent + 1, job, rank + 1);
  }
  std::vector<std::string> Found(const JobMarks& marks) const {
    std::vector<std::string> texts;
    for (const JobProcess& process : JobProcessesAmong(seen_, marks)) {
      texts.push_back(TextOf(process));
    }
    return texts;
  }

  std::vector<SeenProcess> seen_;
};

TEST_F(HouseholdsTest, OnlyOneJobsProcessesAreFound) {
  PutNode(10, "fsdprun", "mine", 0);
  PutNode(20, "fsdprun", "another", 0);
  EXPECT_THAT(
      Found({.job_id = "mine", .coordinator_pid = 10, .coordinator_start_ticks = kStartTicks}),
      ElementsAre("keeper 0 (pid 11)", "agent 0 (pid 10)", "worker 0 (pid 12)", "worker 1 (pid 13)",
                  "coordinator (pid 10)"));
  EXPECT_THAT(Found({.coordinator_pid = 10}), IsEmpty());
}

TEST_F(HouseholdsTest, WhoHasNoPartInTheWorldIsNoVictim) {
  PutNode(10, "fsdprun", "mine", 0);
  Put(30, 1, "fsdprun");
  Put(31, 30, "fsdp-keeper");
  Put(32, 31, "sleep");
  const JobMarks marks{.job_id = "mine", .launchers = {{10, 1}, {30, 0}}};
  EXPECT_THAT(Found(marks), ElementsAre("keeper 1 (pid 11)", "agent 1 (pid 10)",
                                        "worker 0 (pid 12)", "worker 1 (pid 13)"));
}

TEST_F(HouseholdsTest, AWorkerIsTheChildOfAKeeper) {
  PutWorker(12, 11, "mine", 0);
  EXPECT_THAT(Found({.job_id = "mine"}), IsEmpty());
  Put(11, 10, "bash");
  EXPECT_THAT(Found({.job_id = "mine"}), IsEmpty());
}

TEST_F(HouseholdsTest, WhoTakesALostKeeperInIsNoAgent) {
  Put(kServiceManager, 1, "systemd");
  Put(11, kServiceManager, "fsdp-keeper");
  PutWorker(12, 11, "mine", 0);
  EXPECT_THAT(Found({.job_id = "mine"}), ElementsAre("keeper 0 (pid 11)", "worker 0 (pid 12)"));
  EXPECT_THAT(Found({.job_id = "mine", .coordinator_pid = kServiceManager}),
              ElementsAre("keeper 0 (pid 11)", "agent 0 (pid 7)", "worker 0 (pid 12)"));
}

TEST_F(HouseholdsTest, TheKeeperOfALauncherThatWasKilledIsEnding) {
  Put(11, kServiceManager, "fsdp-keeper");
  PutWorker(12, 11, "mine", 0);
  PutNode(20, "a-wrapper", "mine", 2);
  EXPECT_THAT(Found({.job_id = "mine", .launchers = {{20, 1}}}),
              ElementsAre("keeper 1 (pid 21)", "agent 1 (pid 20)", "worker 2 (pid 22)",
                          "worker 3 (pid 23)"));
}

TEST_F(HouseholdsTest, NodesThatWereNotStartedHereAreNumberedByTheirRanks) {
  PutNode(10, "fsdprun", "mine", 4);
  PutNode(20, "fsdprun", "mine", 2);
  PutNode(30, "fsdprun", "mine", 0);
  EXPECT_THAT(Found({.job_id = "mine", .launchers = {{10, 0}}}),
              testing::IsSupersetOf({"agent 0 (pid 10)", "agent 1 (pid 30)", "agent 2 (pid 20)"}));
}

TEST_F(HouseholdsTest, ADaemonStartsItsSessionsAgain) {
  PutNode(10, "fsdp-agent", "mine", 0);
  PutNode(20, "fsdprun", "mine", 2);
  PutNode(30, "fsdp-agent", "mine", 4);
  std::vector<int64_t> sessions;
  for (const JobProcess& process :
       JobProcessesAmong(seen_, {.job_id = "mine", .launchers = {{30, 0}}})) {
    if (process.is_session) {
      EXPECT_EQ(process.role, FaultTarget::kAgent);
      sessions.push_back(process.pid);
    }
  }
  EXPECT_THAT(sessions, UnorderedElementsAre(10));
}

TEST_F(HouseholdsTest, ASessionThatHasAdoptedAKeeperIsItsAgent) {
  Put(11, kServiceManager, "fsdp-keeper");
  seen_.back().folder = "/daemon/5";
  PutWorker(12, 11, "mine", 0);
  Put(20, 9, "fsdp-agent");
  Put(21, 9, "fsdp-agent");
  seen_.back().folder = "/daemon/6";
  EXPECT_THAT(Found({.job_id = "mine"}), ElementsAre("keeper 0 (pid 11)", "worker 0 (pid 12)"));
  Put(22, 9, "fsdp-agent");
  seen_.back().folder = "/daemon/5";
  EXPECT_THAT(Found({.job_id = "mine"}),
              ElementsAre("keeper 0 (pid 11)", "agent 0 (pid 22)", "worker 0 (pid 12)"));
}

TEST_F(HouseholdsTest, ACoordinatorThatIsAnAgentIsBoth) {
  PutNode(10, "fsdprun", "mine", 0);
  for (const JobProcess& process : JobProcessesAmong(
           seen_,
           {.job_id = "mine", .coordinator_pid = 10, .coordinator_start_ticks = kStartTicks})) {
    EXPECT_EQ(process.is_both, process.pid == 10) << TextOf(process);
  }
}

// The user may have many launchers.
TEST_F(HouseholdsTest, APidThatAnotherLauncherHasGotIsNoCoordinator) {
  PutNode(10, "fsdprun", "another", 0);
  EXPECT_THAT(
      Found({.job_id = "mine", .coordinator_pid = 10, .coordinator_start_ticks = kStartTicks + 1}),
      IsEmpty());
  EXPECT_THAT(
      Found({.job_id = "mine", .coordinator_pid = 10, .coordinator_start_ticks = kStartTicks}),
      ElementsAre("coordinator (pid 10)"));
}

TEST_F(HouseholdsTest, AnAgentThatHasGotThePidOfACoordinatorIsNotBoth) {
  PutNode(10, "fsdprun", "mine", 0);
  for (const JobProcess& process : JobProcessesAmong(
           seen_,
           {.job_id = "mine", .coordinator_pid = 10, .coordinator_start_ticks = kStartTicks + 1})) {
    EXPECT_FALSE(process.is_both) << TextOf(process);
    EXPECT_NE(process.role, FaultTarget::kCoordinator);
  }
}

TEST(SessionFolderTest, ItFollowsItsOption) {
  EXPECT_EQ(SessionFolderOf(std::string("fsdp-agent\0--session\0/a/b\0", 26)), "/a/b");
  EXPECT_EQ(SessionFolderOf(std::string("fsdp-agent\0--daemon\0", 20)), "");
  EXPECT_EQ(SessionFolderOf("--session"), "");
  EXPECT_EQ(SessionFolderOf(""), "");
}

TEST(WorkerMarksTest, BothVariablesMakeAWorker) {
  const std::string environment("A=1\0FSDPRUN_JOB_ID=run/5=x\0RANK=12\0", 36);
  EXPECT_EQ(WorkerMarksOf(environment), (WorkerMarks{.job_id = "run/5=x", .rank = 12}));
  EXPECT_EQ(WorkerMarksOf(std::string("FSDPRUN_JOB_ID=a\0RANK=x\0", 24)), std::nullopt);
  EXPECT_EQ(WorkerMarksOf("FSDPRUN_JOB_ID=a"), (WorkerMarks{.job_id = "a", .rank = 0}));
  EXPECT_EQ(WorkerMarksOf("RANK=1"), std::nullopt);
  EXPECT_EQ(WorkerMarksOf("NOT_FSDPRUN_JOB_ID=a"), std::nullopt);
}

}  // namespace
}  // namespace fsdprun::chaos
