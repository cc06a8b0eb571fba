// Nodes that keep failing: what the job does without them, and with them where it must.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kKill = 9;

JobSpec QuarantineSpec(int min, int max, int restarts = 20) {
  JobSpec spec = Spec(min, max, restarts);
  spec.quarantine_after = 3;
  spec.node_ranks_bind = false;
  spec.last_call = seconds(1);
  return spec;
}

/// Its nodes have two workers each.
class LemonJob : public Job {
 public:
  explicit LemonJob(const JobSpec& spec, uint64_t nodes) : Job(spec) {
    for (uint64_t node = 1; node <= nodes; ++node) {
      Join(node);
      nodes_.push_back(node);
    }
    Wait(spec.last_call, nodes_);
    Run();
  }
  uint64_t g() const { return machine_.generation().value(); }
  /// The members of the world that is being prepared.
  std::vector<uint64_t> Members() const {
    std::vector<uint64_t> members;
    for (const job::Node& node : machine_.nodes()) {
      if (node.IsMember()) {
        members.push_back(node.info.incarnation.value());
      }
    }
    return members;
  }
  void Run() { Start(g(), Members()); }
  /// A worker of `who` is killed, the world stops, and the next one is ordered.
  std::vector<std::string> Fail(uint64_t who, int local_rank = 0, int signal = kKill) {
    const std::vector<uint64_t> members = Members();
    const uint64_t failed = g();
    std::vector<std::string> words = Exit(who, failed, local_rank, 0, signal);
    for (const uint64_t member : members) {
      const std::vector<std::string> more = Say(member, failed, WorkersStopped{});
      words.insert(words.end(), more.begin(), more.end());
    }
    return words;
  }
  std::vector<std::string> FailAndRun(uint64_t who, int local_rank = 0, int signal = kKill) {
    std::vector<std::string> words = Fail(who, local_rank, signal);
    Run();
    return words;
  }

  std::vector<uint64_t> nodes_;
};

TEST(JobQuarantineTest, ThirdFailureInARowLeavesTheNodeOut) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  job.FailAndRun(2);
  EXPECT_THAT(job.FailAndRun(2), Not(Contains(StartsWith("left out"))));
  EXPECT_THAT(job.Members(), ElementsAre(1, 2, 3));
  EXPECT_THAT(job.FailAndRun(2), Contains("left out 2"));
  EXPECT_THAT(job.Members(), ElementsAre(1, 3));
  EXPECT_EQ(job.machine_.restarts_used(), 3);
  EXPECT_EQ(job.machine_.membership_changes(), 0);
  EXPECT_THAT(job.history_, Contains("quarantined node-2 after 3"));
}

TEST(JobQuarantineTest, ItStaysASpareForWhichNoWorldIsStopped) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  const uint64_t g = job.g();
  EXPECT_THAT(job.Wait(seconds(60), {1, 2, 3}), Not(Contains(StartsWith("stop"))));
  EXPECT_EQ(job.g(), g);
  EXPECT_EQ(job.machine_.nodes().size(), 3u);
  // A launcher that is started again there is of the same node.
  job.Say(2, 0, AgentLeft{15, false});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "left out 2"));
  NodeInfo again = job.machine_.nodes().Find(Incarnation(2))->info;
  again.incarnation = Incarnation(7);
  EXPECT_THAT(job.Say(7, 0, AgentJoined{again, {}, {}}), ElementsAre("admit 7", "left out 7"));
  EXPECT_EQ(job.g(), g);
}

TEST(JobQuarantineTest, AnotherNodeThatComesJoinsWithoutIt) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  EXPECT_THAT(job.Join(4), Contains(StartsWith("stop 1")));
  for (const uint64_t member : {1, 3}) {
    job.Say(member, job.g(), WorkersStopped{});
  }
  EXPECT_THAT(job.Members(), ElementsAre(1, 3, 4));
}

TEST(JobQuarantineTest, NodeThatTheMinimumNeedsIsUsedAllTheSameAndThatIsSaid) {
  LemonJob job(QuarantineSpec(3, 4), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  EXPECT_THAT(job.Members(), ElementsAre(1, 2, 3));
  EXPECT_THAT(job.history_,
              Contains("waived node-2: the job needs 3 nodes, and 2 others are there"));
  EXPECT_THAT(job.FailAndRun(2), Not(Contains(StartsWith("left out"))));
  EXPECT_EQ(std::count(job.history_.begin(), job.history_.end(), "quarantined node-2 after 3"), 1);
  // As soon as there are enough, it is left out.
  job.Join(4);
  job.Wait(seconds(1), {1, 2, 3, 4});
  for (const uint64_t member : {1, 2, 3}) {
    job.Say(member, job.g(), WorkersStopped{});
  }
  EXPECT_THAT(job.Members(), ElementsAre(1, 3, 4));
}

/// What becomes of a job whose first node is bad, but for who is left out.
std::vector<std::string> HistoryOf(JobSpec spec, int quarantine_after) {
  spec.quarantine_after = quarantine_after;
  LemonJob job(spec, 3);
  for (int i = 0; i < 7; ++i) {
    job.FailAndRun(1, i % 2, i == 5 ? 11 : kKill);
  }
  job.FailAndRun(3);
  std::erase_if(job.history_, [](const std::string& text) {
    return text.starts_with("quarantined") || text.starts_with("waived") ||
           text.starts_with("lifted");
  });
  return job.history_;
}

TEST(JobQuarantineTest, JobThatNeedsAllItsNodesGoesOnAsItDoesWithoutQuarantine) {
  const std::vector<std::string> history = HistoryOf(QuarantineSpec(3, 3), 0);
  EXPECT_EQ(history.size(), 17u);
  EXPECT_EQ(HistoryOf(QuarantineSpec(3, 3), 3), history);
  EXPECT_EQ(HistoryOf(QuarantineSpec(3, 3), 1), history);
}

TEST(JobQuarantineTest, LaterLossOfAnotherNodeTakesItBack) {
  LemonJob job(QuarantineSpec(2, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  EXPECT_THAT(job.Members(), ElementsAre(1, 3));
  job.Say(3, job.g(), AgentLeft{15, false});
  job.Say(1, job.g(), WorkersStopped{});
  EXPECT_THAT(job.Members(), ElementsAre(1, 2));
  EXPECT_THAT(job.history_, Contains(HasSubstr("waived node-2")));
}

TEST(JobQuarantineTest, JobOfAFixedSizePrefersASpare) {
  LemonJob job(QuarantineSpec(2, 2), 2);
  job.Join(3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  EXPECT_THAT(job.Members(), ElementsAre(1, 3));
}

TEST(JobQuarantineTest, TheSameFailureElsewhereTakesItIntoTheNextWorldAndCostsNone) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  const std::vector<std::string> words = job.FailAndRun(3);
  EXPECT_THAT(words, Contains("left out no longer 2"));
  EXPECT_THAT(job.Members(), ElementsAre(1, 2, 3));
  EXPECT_EQ(job.machine_.membership_changes(), 0);
  EXPECT_THAT(job.history_,
              Contains(HasSubstr("lifted node-2: without it, rank 0 died of signal 9")));
}

TEST(JobQuarantineTest, NoWorldIsStoppedAtItsEndButTheNextOneHasTheNodeAgain) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  const uint64_t g = job.g();
  EXPECT_THAT(job.Wait(seconds(3600), {1, 2, 3}), Not(Contains(StartsWith("stop"))));
  EXPECT_EQ(job.g(), g);
  EXPECT_THAT(job.history_, Not(Contains(StartsWith("lifted"))));
  EXPECT_THAT(job.FailAndRun(3, 1, 11), Contains("left out no longer 2"));
  EXPECT_THAT(job.Members(), ElementsAre(1, 2, 3));
  EXPECT_THAT(job.history_, Contains("lifted node-2: its quarantine of 3600.0 s is over"));
}

TEST(JobQuarantineTest, NodesThatFailInTurnAreAllKept) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (uint64_t i = 0; i < 9; ++i) {
    job.FailAndRun(1 + i % 3);
    EXPECT_THAT(job.Members(), ElementsAre(1, 2, 3));
  }
}

TEST(JobQuarantineTest, NodeThatIsLostAndComesBackIsLeftOutToo) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  uint64_t who = 2;
  for (int i = 0; i < 3; ++i) {
    const uint64_t g = job.g();
    job.Step(job::AgentStreamLost{Incarnation(who)});
    job.Wait(seconds(1), {1, 3});
    for (const uint64_t member : {1, 3}) {
      job.Say(member, g, WorkersStopped{});
    }
    EXPECT_THAT(job.Members(), ElementsAre(1, 3));
    job.Run();
    NodeInfo again;
    again.incarnation = Incarnation(++who + 10);
    again.name = "node-2";
    again.address = "10.0.0.2";
    again.local_world_size = 2;
    who = again.incarnation.value();
    const std::vector<std::string> words = job.Say(who, 0, AgentJoined{again, {}, {}});
    if (i == 2) {
      EXPECT_THAT(words, Contains("left out " + std::to_string(who)));
      EXPECT_THAT(words, Not(Contains(StartsWith("stop"))));
      return;
    }
    EXPECT_THAT(words, Contains(StartsWith("stop 1")));
    for (const uint64_t member : {1, 3}) {
      job.Say(member, job.g(), WorkersStopped{});
    }
    job.Run();
  }
}

TEST(JobQuarantineTest, WhoIsLostBeforeItsWorkersStartHasEndedThatWorldToo) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  job.FailAndRun(2);
  job.FailAndRun(2);
  job.Fail(1);  // Another one: the row begins anew.
  job.Run();
  job.FailAndRun(2);
  job.Fail(2);
  const uint64_t g = job.g();
  job.Step(job::AgentStreamLost{Incarnation(2)});  // While it prepares.
  job.Wait(seconds(1), {1, 3});
  for (const uint64_t member : {1, 3}) {
    job.Say(member, g, WorkersStopped{});
  }
  EXPECT_THAT(job.history_, Contains("quarantined node-2 after 3"));
}

TEST(JobQuarantineTest, TwoThatAreLostBeforeTheirWorkersStartAreNoEvidenceAndCostNoRestart) {
  for (const bool is_taken_over : {false, true}) {
    JobSpec spec = QuarantineSpec(1, 4);
    spec.quarantine_after = 1;
    spec.may_be_taken_over = true;
    LemonJob first(spec, 4);
    first.Fail(1);  // So that nothing is quarantined yet but node 1, which is a spare from now on.
    const uint64_t g = first.g();
    first.Step(job::AgentStreamLost{Incarnation(2)});
    first.Wait(seconds(1), {1, 3, 4});
    ASSERT_EQ(first.machine_.phase(), job::Phase::kStopping);
    const int restarts = first.record_->budgets.restarts_used;
    Job second(spec, first);
    Job& job = is_taken_over ? second : static_cast<Job&>(first);
    if (is_taken_over) {
      for (const uint64_t who : {1, 3, 4}) {
        job.Join(who, {}, who == 1 ? 0 : g);
      }
    }
    job.Step(job::AgentStreamLost{Incarnation(3)});
    job.Wait(seconds(1), {1, 4});
    job.Say(4, g, WorkersStopped{});
    EXPECT_EQ(job.record_->budgets.restarts_used, restarts);
    EXPECT_GT(job.machine_.generation().value(), g);
    if (!is_taken_over) {  // A successor does not know who was lost before.
      EXPECT_THAT(job.history_, Contains(StartsWith("quarantined")).Times(1));
    }
  }
}

TEST(JobQuarantineTest, NodeThatAnOperatorTakesAwayIsNoSuchNode) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (int i = 0; i < 4; ++i) {
    job.Say(2, job.g(), AgentLeft{15, false});
    for (const uint64_t member : {1, 3}) {
      job.Say(member, job.g(), WorkersStopped{});
    }
    job.Run();
    job.Join(2);
    for (const uint64_t member : {1, 3}) {
      job.Say(member, job.g(), WorkersStopped{});
    }
    job.Run();
  }
  EXPECT_THAT(job.history_, Not(Contains(StartsWith("quarantined"))));
}

TEST(JobQuarantineTest, TheOutcomeNamesItAndItEndsWithZero) {
  LemonJob job(QuarantineSpec(1, 3, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  const std::vector<std::string> words = job.Fail(3, 1, 11);
  EXPECT_THAT(words, Contains("release 2 0"));
  EXPECT_THAT(words, Contains("release 3 1"));
  EXPECT_THAT(job.machine_.outcome()->left_out,
              ElementsAre(HasSubstr("node node-2 (10.0.0.2) was the first to fail in 3 worlds")));
}

TEST(JobQuarantineTest, ASuccessorKnowsIt) {
  JobSpec spec = QuarantineSpec(1, 3);
  spec.may_be_taken_over = true;
  LemonJob before(spec, 3);
  for (int i = 0; i < 3; ++i) {
    before.FailAndRun(2);
  }
  ASSERT_EQ(before.record_->quarantine.size(), 1u);
  Job after(spec, before);
  after.Step(job::TimerDue{});
  EXPECT_THAT(after.Join(2), Contains("left out 2"));
  EXPECT_THAT(after.Join(1, {}, before.g()), Not(Contains(StartsWith("left out"))));
  EXPECT_THAT(after.Join(3, {}, before.g()), Not(Contains(StartsWith("left out"))));
  EXPECT_EQ(after.machine_.phase(), job::Phase::kRunning);
  EXPECT_EQ(after.machine_.generation().value(), before.g());
}

TEST(JobQuarantineTest, ItIsToldAgainOnANewStream) {
  LemonJob job(QuarantineSpec(1, 3), 3);
  for (int i = 0; i < 3; ++i) {
    job.FailAndRun(2);
  }
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "left out 2"));
}

}  // namespace
}  // namespace fsdprun
