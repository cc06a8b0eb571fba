#include "launcher/metrics/job_history.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/launcher/metrics/page_text.h"

namespace fsdprun {
namespace {

/// A job of one node with one worker, driven as its host drives it: a step a second.
class JobHistoryTest : public testing::Test {
 protected:
  void Step(const job::Event& event) {
    const MonoTime now = At(++seconds_);
    history_.Begin(event);
    const job::Effects effects = machine_.Step(event, now);
    for (const job::News& news : effects.news) {
      history_.Note(news, now);
    }
    history_.Stepped(machine_, now);
  }
  void Say(const AgentMessage& message) {
    Step(FromAgent{Incarnation(1), machine_.generation(), message});
  }
  /// As of generation 0 it joins.
  void Join() {
    NodeInfo info;
    info.incarnation = Incarnation(1);
    Step(FromAgent{Incarnation(1), {}, AgentJoined{info, {}, {}}});
  }
  void Start() {
    Say(AgentHeartbeat{});  // Its lease is short.
    Say(AgentPrepared{StoreEndpoint{"127.0.0.1", 1}});
    Say(AgentStarted{});
    Say(AgentHeartbeat{});
  }
  void Progress(int64_t step) { Say(AgentHeartbeat{.progress = {.step = step}}); }

  double Of(TimeBucket bucket) const {
    return ToSeconds(history_.ledger().All(At(seconds_))[static_cast<size_t>(bucket)]);
  }

  int seconds_ = 0;
  JobSpec spec_;
  JobMachine machine_{spec_};
  JobHistory history_{machine_, /*took_over=*/false, At(0)};
};

TEST_F(JobHistoryTest, ARestartThatAnOperatorAsksForIsHis) {
  Join();
  Start();
  Progress(1);
  Progress(2);
  Step(job::RestartAsked{});
  Say(WorkersStopped{});
  EXPECT_EQ(Of(TimeBucket::kOperator), 1);
  EXPECT_EQ(Of(TimeBucket::kStop), 0);
  EXPECT_EQ(machine_.generation(), Generation(2));
  Start();
  constexpr auto kOperator = static_cast<size_t>(job::StopKind::kOperator);
  EXPECT_EQ(history_.tally().recovered()[kOperator], 1U);
}

TEST_F(JobHistoryTest, ANodeThatAnOperatorDrainsIsHisDoing) {
  Join();
  Start();
  Progress(1);
  Step(job::DrainAsked{Incarnation(1)});
  Say(WorkersStopped{});
  EXPECT_EQ(Of(TimeBucket::kOperator), 1);
  EXPECT_EQ(Of(TimeBucket::kStop), 0);
}

TEST_F(JobHistoryTest, TheLastWorldsProgressIsNotThisOnes) {
  Join();
  Start();
  Progress(1);
  Progress(7);
  Step(job::RestartAsked{});
  Say(WorkersStopped{});
  Start();
  EXPECT_FALSE(machine_.world().has_progress());
  EXPECT_EQ(history_.tally().until_progress().count(), 0U);
  Progress(7);  // The same step, done again.
  EXPECT_EQ(history_.tally().until_progress().count(), 1U);
  EXPECT_EQ(history_.ledger().repeated_steps(), 1);
}

TEST_F(JobHistoryTest, AFailureSaysHowOldItIs) {
  Join();
  Start();
  Progress(1);
  for (int i = 0; i < 5; ++i) {
    Say(AgentHeartbeat{.progress = {.step = 1}});
  }
  WorkerExited exited;
  exited.exit.signal = 9;
  exited.age = std::chrono::seconds(3);
  Say(exited);
  EXPECT_EQ(Of(TimeBucket::kDetect), 3);
  Say(WorkersStopped{});
  EXPECT_EQ(history_.tally().faults()[static_cast<size_t>(CauseKind::kWorkerFailed)], 1U);
}

TEST_F(JobHistoryTest, AStatusHasTheWholeTime) {
  Join();
  Start();
  Progress(1);
  v1::TimeLedger described;
  history_.Describe(At(seconds_ + 5), &described);
  int64_t sum = 0;
  for (const v1::TimeLedger::Entry& entry : described.entries()) {
    sum += entry.ns();
  }
  EXPECT_EQ(described.wall_ns(), (seconds_ + 5) * 1'000'000'000LL);
  EXPECT_EQ(sum, described.wall_ns());
  EXPECT_TRUE(described.has_goodput_ratio());
}

}  // namespace
}  // namespace fsdprun
