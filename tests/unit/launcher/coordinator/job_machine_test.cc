#include "launcher/coordinator/job_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Drives a JobMachine and writes down what it orders, one word group per action: "prepare 1 g1
/// rank 0".
class Job {
 public:
  explicit Job(JobSpec spec) : machine_(spec) {}

  std::vector<std::string> Step(const job::Event& event) {
    const job::Effects effects = machine_.Step(event, now_);
    wake_at_ = effects.wake_at;
    EXPECT_EQ(machine_.CheckInvariants(), "");
    std::vector<std::string> words;
    for (const job::Action& action : effects.actions) {
      words.push_back(Words(action));
    }
    return words;
  }
  std::vector<std::string> Say(uint64_t who, uint64_t g, AgentMessage message) {
    return Step(FromAgent{Incarnation(who), Generation(g), std::move(message)});
  }
  std::vector<std::string> Join(uint64_t who, std::optional<int> rank = {}, uint64_t held = 0) {
    NodeInfo info;
    info.incarnation = Incarnation(who);
    info.name = "node-" + std::to_string(who);
    info.address = "10.0.0." + std::to_string(who);
    info.local_world_size = 2;
    info.requested_node_rank = rank;
    return Say(who, held, AgentJoined{info, Generation(held)});
  }
  std::vector<std::string> Prepared(uint64_t who, uint64_t g) {
    return Say(who, g, AgentPrepared{StoreEndpoint{"10.0.0.1", 30000}});
  }
  std::vector<std::string> Exit(uint64_t who, uint64_t g, int local_rank, int code,
                                int signal = 0) {
    WorkerExit exit;
    exit.local_rank = local_rank;
    exit.rank = local_rank;
    exit.exit_code = code;
    exit.signal = signal;
    return Say(who, g, WorkerExited{exit});
  }
  /// Time passes and the machine is woken whenever it asked for it; `beating` agents beat every 0.5
  /// s.
  std::vector<std::string> Wait(Duration d, std::vector<uint64_t> beating = {}) {
    std::vector<std::string> words;
    const MonoTime end = now_ + d;
    MonoTime next_beat = now_;
    while (now_ < end) {
      now_ = std::min({end, std::max(wake_at_, now_), next_beat});
      const auto keep = [&words](const std::vector<std::string>& more) {
        words.insert(words.end(), more.begin(), more.end());
      };
      if (now_ == next_beat) {
        next_beat += std::chrono::milliseconds(500);
        for (const uint64_t who : beating) {
          keep(Say(who, 0, AgentBeat{}));
        }
      }
      keep(Step(job::TimerDue{}));
    }
    return words;
  }
  /// Two nodes of two workers each run generation 1.
  void RunTwo() {
    Join(1);
    Join(2);
    Start(1, {1, 2});
  }
  void Start(uint64_t g, std::vector<uint64_t> who) {
    for (const uint64_t w : who) {
      Prepared(w, g);
    }
    for (const uint64_t w : who) {
      Say(w, g, AgentStarted{});
    }
  }

  JobMachine machine_;
  MonoTime now_{std::chrono::hours(1)};
  MonoTime wake_at_ = MonoTime::max();
  std::optional<JobOutcome> finished_;

 private:
  std::string Words(const job::Action& action) {
    if (const auto* finish = std::get_if<job::FinishJob>(&action)) {
      finished_ = finish->outcome;
      return "finish " + std::to_string(finish->outcome.exit_code);
    }
    const ToAgent& to = std::get<ToAgent>(action);
    const std::string who = std::to_string(to.incarnation.value());
    const std::string g = " g" + std::to_string(to.generation.value());
    if (std::holds_alternative<AdmitAgent>(to.message)) return "admit " + who;
    if (const auto* m = std::get_if<RejectAgent>(&to.message)) {
      return (m->rejoin ? "rejoin " : "reject ") + who + ": " + m->reason;
    }
    if (const auto* m = std::get_if<PrepareGeneration>(&to.message)) {
      return "prepare " + who + g + " rank " + std::to_string(m->assignment.group_rank) + " of " +
             std::to_string(m->assignment.group_world_size) + " restart " +
             std::to_string(m->assignment.restart_count);
    }
    if (const auto* m = std::get_if<CommitGeneration>(&to.message)) {
      return "commit " + who + g + " " + m->store.address + ":" + std::to_string(m->store.port);
    }
    if (std::holds_alternative<StopWorkers>(to.message)) {
      const StopWorkers& stop = std::get<StopWorkers>(to.message);
      return "stop " + who + g + " signal " + std::to_string(stop.signal) + " grace " +
             std::to_string(stop.grace / std::chrono::seconds(1));
    }
    return "release " + who + " " + std::to_string(std::get<ReleaseAgent>(to.message).exit_code);
  }
};

JobSpec Spec(int min, int max, int restarts) {
  JobSpec spec;
  spec.min_nodes = min;
  spec.max_nodes = max;
  spec.max_restarts = restarts;
  return spec;
}

TEST(JobMachineTest, AllNodesOfAWorldGetTheLaunchId) {
  JobSpec spec;
  spec.launch_id = "12ab34cd";
  spec.min_nodes = spec.max_nodes = 2;
  JobMachine machine(spec);
  std::vector<std::string> ids;
  for (const uint64_t who : {1, 2}) {
    NodeInfo node;
    node.incarnation = Incarnation(who);
    const job::Effects effects = machine.Step(
        FromAgent{Incarnation(who), Generation{}, AgentJoined{node, Generation{}}}, MonoTime{});
    for (const job::Action& action : effects.actions) {
      const auto& order = std::get<ToAgent>(action).message;
      if (const auto* prepare = std::get_if<PrepareGeneration>(&order)) {
        ids.push_back(prepare->assignment.launch_id);
      }
    }
  }
  EXPECT_THAT(ids, ElementsAre("12ab34cd", "12ab34cd"));
}

TEST(JobMachineTest, FormsAtOnceWhenCompleteRunsAndFinishes) {
  Job job(Spec(2, 2, 0));
  EXPECT_THAT(job.Join(1), ElementsAre("admit 1"));
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "prepare 1 g1 rank 0 of 2 restart 0",
                                       "prepare 2 g1 rank 1 of 2 restart 0"));
  EXPECT_THAT(job.Prepared(2, 1), IsEmpty());
  EXPECT_THAT(job.Prepared(1, 1),
              ElementsAre("commit 1 g1 10.0.0.1:30000", "commit 2 g1 10.0.0.1:30000"));
  job.Exit(1, 1, 0, 0);
  job.Exit(1, 1, 1, 0);
  job.Exit(2, 1, 1, 0);
  EXPECT_THAT(job.Exit(2, 1, 0, 0), ElementsAre("release 1 0", "release 2 0"));
  job.Say(1, 1, AgentLeft{});
  EXPECT_THAT(job.Say(2, 1, AgentLeft{}), ElementsAre("finish 0"));
  EXPECT_EQ(job.finished_->kind, OutcomeKind::kSucceeded);
}

TEST(JobMachineTest, LastCallRunsOnlyBetweenMinAndMax) {
  Job job(Spec(1, 3, 0));
  job.Join(1);
  EXPECT_EQ(job.machine_.phase(), job::Phase::kGathering);
  job.Wait(std::chrono::seconds(29), {1});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kGathering);
  job.Wait(std::chrono::seconds(2), {1});
  EXPECT_EQ(job.machine_.phase(), job::Phase::kPreparing);
}

TEST(JobMachineTest, JoinTimeoutNamesHowManyAndWhoIsMissing) {
  JobSpec spec = Spec(3, 3, 0);
  spec.join_timeout = std::chrono::seconds(5);
  Job job(spec);
  job.Join(1, 0);
  job.Join(2, 2);
  EXPECT_THAT(job.Wait(std::chrono::seconds(6), {1, 2}),
              ElementsAre("release 1 1", "release 2 1", "finish 1"));
  EXPECT_THAT(job.finished_->reason, HasSubstr("2 of 3 joined (node-1, node-2)"));
  EXPECT_THAT(job.finished_->reason, HasSubstr("missing node rank 1"));
  EXPECT_EQ(job.finished_->failure->root.kind, CauseKind::kJoinTimeout);
}

TEST(JobMachineTest, ImpossibleAndTakenNodeRanksAreRefused) {
  Job job(Spec(2, 2, 0));
  EXPECT_THAT(job.Join(1, 5), ElementsAre(HasSubstr("node rank 5 is outside 0..1")));
  job.Join(2, 0);
  EXPECT_THAT(job.Join(3, 0), ElementsAre(HasSubstr("node rank 0 is taken by node node-2")));
}

TEST(JobMachineTest, SimultaneousFailuresAreChargedOnce) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Exit(2, 1, 0, 7),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 2 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Exit(1, 1, 0, 7), IsEmpty());
  EXPECT_THAT(job.Exit(1, 1, 1, 9), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), IsEmpty());
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 2 g2 rank 1 of 2 restart 1"));
  EXPECT_EQ(job.machine_.restarts_used(), 1);
}

TEST(JobMachineTest, BudgetSpentEndsTheJobWithTheRootCause) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(2, 1, 0, 7);
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(2)), ElementsAre("finish 1"));
  EXPECT_EQ(job.finished_->failure->root.node_name, "node-2");
  EXPECT_EQ(job.finished_->failure->root.worker->exit_code, 7);
}

TEST(JobMachineTest, ConfigurationErrorIsNotRestarted) {
  Job job(Spec(2, 2, 5));
  job.RunTwo();
  job.Exit(1, 1, 0, 78);
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_EQ(job.machine_.restarts_used(), 0);
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("configuration error"));
}

TEST(JobMachineTest, CulpritWhoseNoticeComesLateIsTheCauseNotItsVictim) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);           // the victim saw its connection break
  job.Exit(2, 1, 1, 0, SIGKILL);  // the killed one took long to tear down
  WorkerExit collateral;
  collateral.local_rank = 0;
  collateral.signal = SIGTERM;
  collateral.after_stop = collateral.killed_by_us = true;
  job.Say(2, 1, WorkerExited{collateral});
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  const FailureReport& report = *job.machine_.outcome()->failure;
  EXPECT_EQ(report.root.worker->signal, SIGKILL);
  EXPECT_EQ(report.root.node_name, "node-2");
  EXPECT_EQ(report.other_failures, 1);
  EXPECT_EQ(report.collateral, 1);
}

TEST(JobMachineTest, NodeLostDuringPrepareRestartsTheFormationUncharged) {
  Job job(Spec(2, 3, 0));
  job.Join(1);
  job.Join(2);
  job.Join(3);
  job.Prepared(1, 1);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(300)),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 3 g1 signal 15 grace 30"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 0",
                                                           "prepare 3 g2 rank 1 of 2 restart 0"));
  EXPECT_EQ(job.machine_.membership_changes(), 1);
}

TEST(JobMachineTest, StaleMessagesAreDroppedAndCounted) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);
  job.Say(1, 1, WorkersStopped{});
  job.Say(2, 1, WorkersStopped{});
  const uint64_t before = job.machine_.stale_dropped();
  EXPECT_THAT(job.Exit(2, 1, 0, 1), IsEmpty());             // of the old generation
  EXPECT_THAT(job.Prepared(2, 1), IsEmpty());               // of the old generation
  EXPECT_THAT(job.Exit(99, 2, 0, 1), IsEmpty());            // of nobody
  EXPECT_THAT(job.Say(2, 9, WorkersStopped{}), IsEmpty());  // of the future
  EXPECT_EQ(job.machine_.stale_dropped(), before + 4);
  EXPECT_EQ(job.machine_.phase(), job::Phase::kPreparing);
}

TEST(JobMachineTest, LostNodeIsReplacedAndTheSurvivorKeepsItsPlace) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(1)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(300)),
              ElementsAre("stop 2 g1 signal 15 grace 30"));
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("went away: node-1"));
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "prepare 2 g2 rank 0 of 2 restart 1",
                                       "prepare 3 g2 rank 1 of 2 restart 1"));
}

TEST(JobMachineTest, SpareIsPromotedAndAnUnusedOneIsReleasedWithZero) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3"));
  EXPECT_THAT(job.Join(4), ElementsAre("admit 4"));
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 3 g2 rank 1 of 2 restart 1"));
  job.Start(2, {1, 3});
  job.Exit(3, 2, 0, 78);
  job.Say(1, 2, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 2, WorkersStopped{}),
              ElementsAre("release 1 1", "release 3 1", "release 4 0"));
}

TEST(JobMachineTest, SameIncarnationBackWithinTheGraceGoesOn) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(200));
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(2), {1, 2}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
}

TEST(JobMachineTest, OpenOrdersAreRepeatedToAnAgentThatIsBack) {
  Job job(Spec(2, 2, 0));
  job.Join(1);
  job.Join(2);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "prepare 2 g1 rank 1 of 2 restart 0"));
  job.Prepared(1, 1);
  job.Prepared(2, 1);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2", "commit 2 g1 10.0.0.1:30000"));
}

TEST(JobMachineTest, SilentNodeIsLostAfterThreeSecondsAndMayComeBackClean) {
  Job job(Spec(1, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(2900), {1}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(200), {1}),
              ElementsAre("stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Say(2, 1, AgentBeat{}), ElementsAre(HasSubstr("rejoin 2")));
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2", "stop 2 g1 signal 15 grace 0"));
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 2 g2 rank 1 of 2 restart 1"));
}

TEST(JobMachineTest, ManySilentNodesAtOnceExtendTheLeaseOnce) {
  Job job(Spec(4, 4, 3));
  for (const uint64_t who : {1, 2, 3, 4}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3, 4});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(4000), {1}), IsEmpty());
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("3 of 4 nodes fell silent at once"));
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(1500), {1}), Not(IsEmpty()));
  EXPECT_EQ(job.machine_.nodes().size(), 1u);
}

TEST(JobMachineTest, StoppedCoordinatorDoesNotTakeItsOwnSleepForTheirSilence) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.now_ += std::chrono::seconds(20);
  EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::seconds(5), {1, 2}), IsEmpty());
}

TEST(JobMachineTest, JoinerGrowsTheWorldUncharged) {
  Job job(Spec(1, 3, 0));
  job.Join(1);
  job.Wait(std::chrono::seconds(31), {1});
  job.Start(1, {1});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 0",
                                                           "prepare 2 g2 rank 1 of 2 restart 0"));
}

TEST(JobMachineTest, OperatorStopEndsInOrderAndTheSecondSignalEndsTheGrace) {
  Job job(Spec(2, 2, 5));
  job.RunTwo();
  EXPECT_THAT(job.Step(job::OperatorStop{SIGINT}),
              ElementsAre("stop 1 g1 signal 2 grace 30", "stop 2 g1 signal 2 grace 30"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Step(job::OperatorStop{SIGINT}), ElementsAre("stop 2 g1 signal 2 grace 0"));
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), ElementsAre("release 1 1", "release 2 1"));
  job.Wait(std::chrono::seconds(2));
  EXPECT_EQ(job.finished_->kind, OutcomeKind::kStoppedBySignal);
  EXPECT_EQ(job.finished_->exit_code, 1);
}

TEST(JobMachineTest, StuckAndWedgedNodesAreReleasedAndTheOthersGoOn) {
  Job job(Spec(1, 2, 3));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);
  EXPECT_THAT(job.Say(2, 1, NodeFaulted{CauseKind::kNodeWedged, "pid 12 outlived SIGKILL"}),
              ElementsAre("release 2 1"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 1 restart 1"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(61), {1}),
              Contains("release 1 1"));  // never prepares
  EXPECT_EQ(job.machine_.phase(), job::Phase::kGathering);
}

TEST(JobMachineTest, EarlyExitWithZeroIsNoFailureEvenIfTheNodeThenLeaves) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(2, 1, 0, 0);
  job.Exit(2, 1, 1, 0);
  job.Say(2, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::seconds(1), {1}), IsEmpty());
  job.Exit(1, 1, 0, 0);
  EXPECT_THAT(job.Exit(1, 1, 1, 0), ElementsAre("release 1 0"));
}

}  // namespace
}  // namespace fsdprun
