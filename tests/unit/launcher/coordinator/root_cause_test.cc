#include "launcher/coordinator/root_cause.h"

#include <gtest/gtest.h>

#include <csignal>
#include <utility>

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

TEST(FailureLogTest, ErrorThatSpeaksForItselfIsNotOutranked) {
  for (const auto& [message, root] : {std::pair("ValueError: no such file", 0),
                                      std::pair("RuntimeError: Connection closed by peer", 5)}) {
    FailureLog log;
    Failure told = WorkerFailure(0, 1, 0);
    told.worker->error_message = message;
    log.Add(told, At(10), At(10));
    log.Add(WorkerFailure(5, 0, SIGKILL), At(900), At(900));
    EXPECT_EQ(log.Report().root.worker->rank, root) << message;
  }
}

TEST(FailureLogTest, ErrorOfItsOwnOutranksVictimsThatWereHeardFirst) {
  FailureLog log;
  Failure victim = WorkerFailure(0, 1, 0);
  victim.worker->error_message = "Connection closed by peer [10.0.0.7]:20913";
  log.Add(victim, At(10), At(10));
  log.Add(WorkerFailure(3, 1, 0), At(11), At(11));
  Failure culprit = WorkerFailure(5, 1, 0);
  culprit.worker->error_message = "CUDA out of memory";
  log.Add(culprit, At(60), At(60));
  EXPECT_EQ(log.Report().root.worker->rank, 5);
}

TEST(FailureLogTest, ErrorsOfItsOwnMayContainWordsOfTheTransport) {
  for (const char* message :
       {"CheckpointError: cannot store NaN in step.json", "RuntimeError: it is stored as BF16",
        "RuntimeError: cannot restore at step 12",
        "ConfigError: cannot read /data/datastore/peers/socket.bin: connection lost",
        "FileNotFoundError: restored/barrier.pt"}) {
    FailureLog log;
    Failure told = WorkerFailure(0, 1, 0);
    told.worker->error_message = message;
    log.Add(told, At(10), At(10));
    log.Add(WorkerFailure(5, 0, SIGKILL), At(900), At(900));
    EXPECT_EQ(log.Report().root.worker->rank, 0) << message;
  }
}

TEST(FailureLogTest, TypesAndPhrasesOfALostPeerMarkAVictim) {
  for (const char* message :
       {"PeerError: all_gather: rank 3 is gone", "StoreError: get loss: the server is gone",
        "RuntimeError: store at 10.0.0.1:4711, getting 'loss': Network is unreachable",
        "RuntimeError: TCPStore recv failed", "ConnectionResetError: [Errno 104]",
        "RuntimeError: Connection closed by peer", "RuntimeError: Broken pipe"}) {
    FailureLog log;
    Failure victim = WorkerFailure(0, 1, 0);
    victim.worker->error_message = message;
    log.Add(victim, At(10), At(10));
    log.Add(WorkerFailure(5, 0, SIGKILL), At(900), At(900));
    EXPECT_EQ(log.Report().root.worker->rank, 5) << message;
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

}  // namespace
}  // namespace fsdprun
