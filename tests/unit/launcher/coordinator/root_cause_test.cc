#include "launcher/coordinator/root_cause.h"

#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

MonoTime At(int64_t ms) { return MonoTime(std::chrono::milliseconds(ms)); }

Failure WorkerFailure(int rank, int exit_code, int signal) {
  Failure failure;
  failure.worker = WorkerExit{};
  failure.worker->rank = rank;
  failure.worker->exit_code = exit_code;
  failure.worker->signal = signal;
  return failure;
}

Failure FailureWithError(int rank, int exit_code, const char* error) {
  Failure failure = WorkerFailure(rank, exit_code, 0);
  failure.worker->error_message = error;
  return failure;
}

Failure NodeFailure(CauseKind kind) {
  Failure failure;
  failure.kind = kind;
  return failure;
}

TEST(FailureLogTest, FirstReceivedIsTheCause) {
  FailureLog log;
  log.Add(WorkerFailure(3, 1, 0), At(10), At(10));
  log.Add(WorkerFailure(0, 2, 0), At(11), At(11));
  const FailureReport report = log.Report();
  EXPECT_EQ(report.root.worker->rank, 3);
  EXPECT_EQ(report.other_failures, 1);
  ASSERT_EQ(report.others.size(), 1u);
  EXPECT_EQ(report.others[0].worker->rank, 0);
}

TEST(FailureLogTest, ForeignSignalOutranksThePlainExitOfItsVictim) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGBUS}) {
    FailureLog log;
    log.Add(WorkerFailure(0, 1, 0), At(10), At(10));
    log.Add(WorkerFailure(5, 0, signal), At(900), At(900));
    EXPECT_EQ(log.Report().root.worker->rank, 5) << signal;
  }
}

TEST(FailureLogTest, ItsKindIsThatOfTheCause) {
  FailureLog log;
  EXPECT_EQ(log.RootKind(), std::nullopt);
  log.Add(WorkerFailure(0, 1, 0), At(10), At(10));
  EXPECT_EQ(log.RootKind(), CauseKind::kWorkerFailed);
  log.Add(NodeFailure(CauseKind::kNodeLost), At(900), At(9));
  EXPECT_EQ(log.RootKind(), CauseKind::kNodeLost);
  EXPECT_EQ(log.RootKind(), log.Report().root.kind);
}

TEST(FailureLogTest, CrashWhileBeingStoppedIsCollateral) {
  for (const int signal : {SIGSEGV, SIGILL, SIGFPE, SIGABRT}) {
    FailureLog log;
    log.Add(WorkerFailure(0, 1, 0), At(10), At(10));
    Failure crashed = WorkerFailure(5, 0, signal);
    crashed.worker->after_stop = true;
    log.Add(crashed, At(900), At(900));
    EXPECT_EQ(log.Report().root.worker->rank, 0) << signal;
    EXPECT_EQ(log.Report().collateral, 1) << signal;
  }
}

TEST(FailureLogTest, ForeignKillWhoseNoticeTrailsTheStopOutranks) {
  for (const int signal : {SIGKILL, SIGBUS}) {
    FailureLog log;
    log.Add(WorkerFailure(0, 1, 0), At(10), At(10));
    Failure killed = WorkerFailure(5, 0, signal);
    killed.worker->after_stop = true;
    log.Add(killed, At(900), At(900));
    EXPECT_EQ(log.Report().root.worker->rank, 5) << signal;
  }
}

TEST(FailureLogTest, FirstToHappenIsTheCauseHoweverLateItIsHeard) {
  FailureLog log;
  log.Add(WorkerFailure(0, 1, 0), At(50), At(50));
  log.Add(WorkerFailure(3, 1, 0), At(70), At(60));
  log.Add(WorkerFailure(5, 1, 0), At(90), At(40));
  const FailureReport report = log.Report();
  EXPECT_EQ(report.root.worker->rank, 5);
  ASSERT_EQ(report.others.size(), 2u);
  EXPECT_EQ(report.others[0].worker->rank, 0);
  EXPECT_EQ(report.others[1].worker->rank, 3);
}

TEST(FailureLogTest, FailuresOfTheSameTimeKeepTheOrderInWhichTheyWereHeard) {
  FailureLog log;
  log.Add(WorkerFailure(4, 1, 0), At(50), At(50));
  log.Add(WorkerFailure(2, 1, 0), At(60), At(50));
  EXPECT_EQ(log.Report().root.worker->rank, 4);
}

/// Rank 0 fails with `error` and code `exit_code`, and the notice of rank 5's SIGKILL comes later.
int RootOfErrorBeforeKill(const char* error, int exit_code = 1) {
  FailureLog log;
  log.Add(FailureWithError(0, exit_code, error), At(10), At(10));
  log.Add(WorkerFailure(5, 0, SIGKILL), At(900), At(900));
  return log.Report().root.worker->rank;
}

TEST(FailureLogTest, ErrorThatALostPeerDoesNotCauseIsNotOutranked) {
  for (const char* error :
       {"ValueError: no such file", "CheckpointError: cannot store NaN in step.json",
        "ConfigError: cannot read /data/peers/socket.bin: connection lost",
        "FileNotFoundError: restored/barrier.pt", "torch.cuda.OutOfMemoryError: CUDA out of memory",
        "MyConnectionError: timed out"}) {
    EXPECT_EQ(RootOfErrorBeforeKill(error), 0) << error;
  }
}

TEST(FailureLogTest, ErrorThatALostPeerMayCauseIsOutranked) {
  for (const char* error :
       {"PeerError: all_gather: rank 3 is gone", "DistBackendError: NCCL communicator was aborted",
        "torch.distributed.DistBackendError: NCCL error", "DistNetworkError: recv failed",
        "DistStoreError: wait timeout", "ConnectionResetError: [Errno 104]",
        "BrokenPipeError: [Errno 32]", "RuntimeError: Connection closed by peer",
        "RuntimeError: it is stored as BF16", "TimeoutError"}) {
    EXPECT_EQ(RootOfErrorBeforeKill(error), 5) << error;
  }
}

TEST(FailureLogTest, ExitCodeOfALostPeerMarksAVictimWhateverItSays) {
  EXPECT_EQ(RootOfErrorBeforeKill("ValueError: no tensor from rank 5", contract::kExitPeerLost), 5);
}

TEST(FailureLogTest, ErrorOfItsOwnOutranksKnownVictims) {
  const Failure victims[] = {
      WorkerFailure(3, contract::kExitPeerLost, 0),
      FailureWithError(3, 1, "DistNetworkError: Connection closed by peer [10.0.0.7]:20913"),
      WorkerFailure(3, 0, SIGABRT)};
  for (const Failure& victim : victims) {
    FailureLog log;
    log.Add(victim, At(10), At(10));
    log.Add(WorkerFailure(4, 1, 0), At(11), At(11));
    log.Add(FailureWithError(5, 1, "RuntimeError: CUDA error"), At(60), At(60));
    EXPECT_EQ(log.Report().root.worker->rank, 5) << victim.worker->error_message;
  }
}

/// Rank 5 ends after the stop order, with an error; `failed_before_stop` as its node found out.
Failure StoppedWithError(const char* error, bool failed_before_stop) {
  Failure stopped = FailureWithError(5, 1, error);
  stopped.worker->after_stop = true;
  stopped.worker->failed_before_stop = failed_before_stop;
  return stopped;
}

TEST(FailureLogTest, WorkerStoppedOnItsWayOutIsTheCauseIfItFailedFirst) {
  FailureLog log;
  log.Add(WorkerFailure(0, 1, 0), At(50), At(50));
  log.Add(StoppedWithError("ValueError: bad batch", true), At(120), At(40));
  const FailureReport report = log.Report();
  EXPECT_EQ(report.root.worker->rank, 5);
  EXPECT_EQ(report.collateral, 0);
  EXPECT_EQ(report.other_failures, 1);
  ASSERT_EQ(report.others.size(), 1u);
  EXPECT_EQ(report.others[0].worker->rank, 0);
}

TEST(FailureLogTest, OfWorkersStoppedOnTheirWayOutTheFirstToFailIsTheCause) {
  for (const bool is_heard_first : {true, false}) {
    FailureLog log;
    log.Add(WorkerFailure(0, 1, 0), At(50), At(50));
    Failure first = StoppedWithError("ValueError: bad batch", true);
    first.worker->rank = 6;
    const Failure second = StoppedWithError("KeyError: 'loss'", true);
    log.Add(is_heard_first ? first : second, At(120), At(is_heard_first ? 40 : 45));
    log.Add(is_heard_first ? second : first, At(130), At(is_heard_first ? 45 : 40));
    EXPECT_EQ(log.Report().root.worker->rank, 6) << is_heard_first;
    EXPECT_EQ(log.Report().collateral, 1);
  }
}

TEST(FailureLogTest, OtherStoppedWorkersAreCollateral) {
  const struct {
    Failure stopped;
    int64_t failed_ms;
    Failure first;
  } cases[] = {
      {StoppedWithError("ValueError: it failed later", true), 60, WorkerFailure(0, 1, 0)},
      {StoppedWithError("ValueError: of the shutdown", false), 40, WorkerFailure(0, 1, 0)},
      {StoppedWithError("PeerError: rank 0 is gone", true), 40, WorkerFailure(0, 1, 0)},
      {StoppedWithError("ValueError: bad batch", true), 40, WorkerFailure(0, 78, 0)},
      {StoppedWithError("ValueError: bad batch", true), 40, WorkerFailure(0, 0, SIGSEGV)},
  };
  for (const auto& c : cases) {
    FailureLog log;
    log.Add(c.first, At(50), At(50));
    log.Add(c.stopped, At(120), At(c.failed_ms));
    const FailureReport report = log.Report();
    EXPECT_EQ(report.root.worker->rank, 0) << c.stopped.worker->error_message;
    EXPECT_EQ(report.collateral, 1);
    EXPECT_EQ(report.other_failures, 0);
  }
}

TEST(FailureLogTest, ErrorOfItsOwnOutranksOnlyKnownVictims) {
  for (const auto& [signal, root] : {std::pair(0, 3), std::pair(SIGABRT, 5)}) {
    FailureLog log;
    log.Add(WorkerFailure(3, signal == 0 ? 1 : 0, signal), At(10), At(10));
    Failure later = WorkerFailure(5, 1, 0);
    later.worker->error_message = "ValueError: the other rank sent nothing";
    log.Add(later, At(60), At(60));
    EXPECT_EQ(log.Report().root.worker->rank, root) << signal;
  }
}

TEST(FailureLogTest, ExitThatEndsTheJobIsItsCause) {
  FailureLog log;
  log.Add(WorkerFailure(0, 0, SIGABRT), At(10), At(10));
  log.Add(WorkerFailure(3, 0, SIGKILL), At(11), At(11));
  log.Add(WorkerFailure(5, 78, 0), At(20), At(20));
  EXPECT_TRUE(log.HasPermanent());
  EXPECT_EQ(log.Report().root.worker->rank, 5);
}

TEST(FailureLogTest, ConfigurationExitIsNobodysVictimWhateverTheOrder) {
  for (const bool is_heard_first : {true, false}) {
    for (const bool killed_by_us : {true, false}) {
      FailureLog log;
      Failure configuration = WorkerFailure(5, contract::kExitConfig, 0);
      configuration.worker->after_stop = true;
      configuration.worker->killed_by_us = killed_by_us;
      const Failure other = WorkerFailure(0, 0, SIGSEGV);
      log.Add(is_heard_first ? configuration : other, At(10), At(10));
      EXPECT_TRUE(log.Add(is_heard_first ? other : configuration, At(20), At(20)));
      EXPECT_TRUE(log.HasPermanent());
      EXPECT_EQ(log.Report().root.worker->rank, 5) << is_heard_first;
      EXPECT_EQ(log.Report().collateral, 0);
    }
  }
}

TEST(FailureLogTest, ConfigurationExitIsKeptHoweverManyFailuresCameBefore) {
  FailureLog log;
  for (int rank = 0; rank < 6000; ++rank) {
    log.Add(WorkerFailure(rank, 1, 0), At(rank), At(rank));
  }
  log.Add(WorkerFailure(7000, contract::kExitConfig, 0), At(7000), At(7000));
  EXPECT_TRUE(log.HasPermanent());
  EXPECT_EQ(log.Report().root.worker->rank, 7000);
  EXPECT_EQ(log.Report().other_failures, 6000);
}

TEST(FailureLogTest, AbortIsHowVictimsDieSoItDoesNotOutrank) {
  FailureLog log;
  log.Add(WorkerFailure(0, 1, 0), At(10), At(10));
  log.Add(WorkerFailure(5, 0, SIGABRT), At(20), At(20));
  EXPECT_EQ(log.Report().root.worker->rank, 0);
}

TEST(FailureLogTest, OurOwnKillsAreCountedAndNeverListed) {
  FailureLog log;
  log.Add(WorkerFailure(0, 1, 0), At(10), At(10));
  Failure killed = WorkerFailure(1, 0, SIGKILL);
  killed.worker->after_stop = true;
  killed.worker->killed_by_us = true;
  log.Add(killed, At(20), At(20));
  Failure interrupted = WorkerFailure(2, 1, 0);
  interrupted.worker->after_stop = true;
  log.Add(interrupted, At(21), At(21));
  const FailureReport report = log.Report();
  EXPECT_EQ(report.root.worker->rank, 0);
  EXPECT_EQ(report.collateral, 2);
  EXPECT_EQ(report.other_failures, 0);
}

TEST(FailureLogTest, LostNodeOutranksExitsOnlyIfItsSilenceBeganBefore) {
  FailureLog before;
  before.Add(WorkerFailure(0, 1, 0), At(1000), At(1000));
  before.Add(NodeFailure(CauseKind::kNodeLost), At(3900), At(900));
  EXPECT_EQ(before.Report().root.kind, CauseKind::kNodeLost);

  FailureLog after;
  after.Add(WorkerFailure(0, 1, 0), At(1000), At(1000));
  after.Add(NodeFailure(CauseKind::kNodeLost), At(9000), At(6000));
  EXPECT_EQ(after.Report().root.kind, CauseKind::kWorkerFailed);
}

TEST(FailureLogTest, ConfigurationExitIsPermanent) {
  FailureLog log;
  log.Add(WorkerFailure(0, 1, 0), At(1), At(1));
  EXPECT_FALSE(log.HasPermanent());
  log.Add(WorkerFailure(1, 78, 0), At(2), At(2));
  EXPECT_TRUE(log.HasPermanent());
  log.Clear();
  EXPECT_TRUE(log.empty());
}

TEST(FailureLogTest, KeepsABoundedListAndCountsTheRest) {
  FailureLog log;
  for (int rank = 0; rank < 6000; ++rank) {
    log.Add(WorkerFailure(rank, 1, 0), At(rank), At(rank));
  }
  const FailureReport report = log.Report();
  EXPECT_EQ(report.others.size(), static_cast<size_t>(kMaxOtherFailures));
  EXPECT_EQ(report.other_failures, 5999);
}

TEST(ExitCodeOfCauseTest, IsTheWorkersOrThatOfASignal) {
  JobOutcome outcome{.kind = OutcomeKind::kFailed, .exit_code = 1};
  EXPECT_EQ(ExitCodeOfCause(outcome), 1);
  outcome.failure = FailureReport{};
  EXPECT_EQ(ExitCodeOfCause(outcome), 1) << "a node was lost";
  outcome.failure->root.worker = WorkerExit{.exit_code = 7};
  EXPECT_EQ(ExitCodeOfCause(outcome), 7);
  outcome.failure->root.worker = WorkerExit{.signal = 9};
  EXPECT_EQ(ExitCodeOfCause(outcome), 137);
  outcome.kind = OutcomeKind::kStoppedBySignal;
  outcome.signal = 15;
  EXPECT_EQ(ExitCodeOfCause(outcome), 143);
  EXPECT_EQ(ExitCodeOfCause(JobOutcome{}), 0);
}

}  // namespace
}  // namespace fsdprun
