#include "worker/run/failure.h"

#include <fsdp/collectives.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "formats/checkpoint/error.h"
#include "proto/worker_contract.h"
#include "worker/config/command_line.h"
#include "worker/run/stop_signal.h"
#include "worker/world/agreement.h"

namespace fsdprun::worker {
namespace {

template <class Error>
Failure Describe(const char* text, bool is_launched = true) {
  return DescribeFailure(std::make_exception_ptr(Error(text)), is_launched);
}

WorkerEnvironment Rank(int rank, int local_rank, int world_size) {
  WorkerEnvironment environment;
  environment.rank = rank;
  environment.local_rank = local_rank;
  environment.world_size = world_size;
  return environment;
}

TEST(FailureTest, ExitCodesSayWhetherARestartMayHelp) {
  EXPECT_EQ(Describe<ConfigError>("x").exit_code, 78);
  EXPECT_EQ(Describe<EnvironmentError>("x").exit_code, 78);
  EXPECT_EQ(Describe<UsageError>("x", /*is_launched=*/true).exit_code, 78);
  EXPECT_EQ(Describe<UsageError>("x", /*is_launched=*/false).exit_code, 2);
  EXPECT_EQ(Describe<checkpoint::CheckpointError>("x").exit_code, 1);
  EXPECT_EQ(Describe<DivergedError>("x").exit_code, 1);
  EXPECT_EQ(Describe<std::runtime_error>("x").exit_code, 1);
}

TEST(FailureTest, OnlyTheFirstLineIsForTheConsole) {
  const Failure failure = Describe<std::runtime_error>("what\nframe #0\nframe #1");
  EXPECT_EQ(failure.line, "what");
  EXPECT_EQ(failure.text, "what\nframe #0\nframe #1");
}

TEST(FailureTest, TheRankIsNamedWhereItMayMatter) {
  const Failure shared = Describe<ConfigError>("bad");
  const Failure own = Describe<std::runtime_error>("bad");
  EXPECT_EQ(ConsoleLine(shared, Rank(0, 0, 4)), "fsdp-train: bad");
  EXPECT_EQ(ConsoleLine(shared, Rank(2, 0, 4)), "fsdp-train: rank 2: bad");
  EXPECT_EQ(ConsoleLine(own, Rank(0, 0, 4)), "fsdp-train: rank 0: bad");
  EXPECT_EQ(ConsoleLine(own, Rank(0, 0, 1)), "fsdp-train: bad");
}

/// What a child process with the failure does: its standard error, wait status and lifetime.
struct Outcome {
  std::string error_text;
  int status = 0;
  double seconds = 0;
};

Outcome ReportInChild(const Failure& failure, const WorkerEnvironment& environment, int signal) {
  const auto start = std::chrono::steady_clock::now();
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    StopSignal::Install();
    if (signal != 0) {
      raise(signal);
    }
    _exit(ReportFailure(failure, environment));
  }
  close(ends[1]);
  Outcome outcome;
  char text[1000];
  for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;) {
    outcome.error_text.append(text, static_cast<size_t>(n));
  }
  close(ends[0]);
  waitpid(child, &outcome.status, 0);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

TEST(FailureTest, FirstRankOfTheNodeTellsAtOnce) {
  // Had it waited, the signal would have ended it in silence.
  const Outcome outcome = ReportInChild(Describe<ConfigError>("bad"), Rank(0, 0, 2), SIGTERM);
  EXPECT_EQ(outcome.error_text, "fsdp-train: bad\n");
  ASSERT_TRUE(WIFEXITED(outcome.status));
  EXPECT_EQ(WEXITSTATUS(outcome.status), 78);
}

TEST(FailureTest, AnotherRankThatNobodyEndsTellsAfterAWhile) {
  const Outcome outcome = ReportInChild(Describe<ConfigError>("bad"), Rank(1, 1, 2), 0);
  EXPECT_EQ(outcome.error_text, "fsdp-train: rank 1: bad\n");
  EXPECT_EQ(WEXITSTATUS(outcome.status), 78);
  EXPECT_GE(outcome.seconds, 0.9);
}

TEST(FailureTest, AnotherRankThatIsAskedToStopEndsInSilence) {
  const Outcome outcome = ReportInChild(Describe<ConfigError>("bad"), Rank(1, 1, 2), SIGTERM);
  EXPECT_EQ(outcome.error_text, "");
  ASSERT_TRUE(WIFSIGNALED(outcome.status));
  EXPECT_EQ(WTERMSIG(outcome.status), SIGTERM);
}

TEST(FailureTest, WhatAllRanksOfTheJobKnowIsToldByRank0) {
  const Failure failure = Describe<DisagreementError>("bad");
  EXPECT_EQ(failure.exit_code, 78);
  const Outcome other_node = ReportInChild(failure, Rank(2, 0, 4), SIGTERM);
  EXPECT_EQ(other_node.error_text, "");
  EXPECT_TRUE(WIFSIGNALED(other_node.status));
  EXPECT_EQ(ReportInChild(failure, Rank(0, 0, 4), SIGTERM).error_text, "fsdp-train: bad\n");
}

TEST(FailureTest, OnlyTheRankThatTellsWritesAnErrorFile) {
  for (const bool is_first : {true, false}) {
    WorkerEnvironment environment = is_first ? Rank(0, 0, 2) : Rank(1, 1, 2);
    environment.error_file = testing::TempDir() + "error_" + std::to_string(getpid());
    ReportInChild(Describe<ConfigError>("bad"), environment, SIGTERM);
    EXPECT_EQ(unlink(environment.error_file.c_str()) == 0, is_first);
  }
}

TEST(FailureTest, VictimOfALostPeerLeavesTheTellingToTheCause) {
  const Failure victim = DescribeFailure(
      std::make_exception_ptr(fsdp::PeerError({__func__, __FILE__, __LINE__}, "rank 1 died")),
      true);
  EXPECT_EQ(victim.type, "PeerError");
  EXPECT_EQ(victim.line, "rank 1 died");
  EXPECT_EQ(ReportInChild(victim, Rank(0, 0, 2), SIGTERM).error_text, "");
  const Outcome alone = ReportInChild(victim, Rank(0, 0, 2), 0);
  EXPECT_EQ(alone.error_text, "fsdp-train: rank 0: rank 1 died\n");
  EXPECT_EQ(WEXITSTATUS(alone.status), contract::kExitPeerLost);
}

/// Exit code of a process that is asked to stop with a patience of 2 s and then enters a phase of
/// `phase` (unset: one without end) with `patience`. 7: the phase has ended.
int PhaseAfterSignal(std::chrono::milliseconds patience,
                     std::optional<std::chrono::milliseconds> phase) {
  const pid_t child = fork();
  if (child == 0) {
    StopSignal::Install();
    StopSignal::SetTimeout(std::chrono::seconds(2));
    raise(SIGTERM);
    StopSignal::SetTimeout(patience);
    poll(nullptr, 0, phase ? static_cast<int>(phase->count()) : -1);
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StopSignalTest, ANoticeIsARequestToo) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    const pid_t child = fork();
    if (child == 0) {
      StopSignal::Install();
      raise(signal);
      _exit(StopSignal::RaisedAt().has_value() ? 7 : 8);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << signal;
  }
}

TEST(StopSignalTest, PhaseThatBeginsAfterTheSignalHasItsOwnPatience) {
  // Longer than the patience of the phase before, which must be over.
  EXPECT_EQ(PhaseAfterSignal(std::chrono::hours(1), std::chrono::milliseconds(2500)), 7);
  EXPECT_EQ(PhaseAfterSignal(std::chrono::milliseconds(50), std::nullopt), 1);
}

}  // namespace
}  // namespace fsdprun::worker
