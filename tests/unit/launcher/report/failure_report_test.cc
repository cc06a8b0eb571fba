#include "launcher/report/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "launcher/report/failure_hint.h"
#include "launcher/report/progress_line.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

JobOutcome FailedOutcome() {
  ::setenv("TZ", "UTC", 1);
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.restarts_used = 2;
  outcome.max_restarts = 3;
  FailureReport report;
  report.root.node_name = "n1";
  report.root.node_address = "10.0.0.1";
  WorkerExit worker;
  worker.local_rank = 1;
  worker.rank = 5;
  worker.pid = 4711;
  worker.exit_code = 7;
  worker.log_path = "/logs/1/stderr.log";
  worker.exited_unix_ns = 1'000'000'000;
  report.root.worker = worker;
  report.collateral = 7;
  report.other_failures = 1;
  outcome.failure = report;
  return outcome;
}

TEST(FailureReportTest, HasTorchrunsLabelsAndWhatWasDone) {
  const std::string text = FormatFailureReport(FailedOutcome(), {"train.py"});
  for (const char* part :
       {"\ntrain.py FAILED\n", "Root Cause (first observed failure):",
        "  time      : 1970-01-01_00:00:01\n", "  host      : n1 (10.0.0.1)\n",
        "  rank      : 5 (local_rank: 1)\n", "  exitcode  : 7 (pid: 4711)\n",
        "  error_file: <N/A>\n", "  traceback : ", "  log       : /logs/1/stderr.log\n",
        "7 other workers were stopped; 1 later failure is considered a consequence; 2 of 3 "
        "restarts "
        "used"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, StartsWith("fsdprun: ChildFailedError: train.py failed\n===="));
  EXPECT_THAT(text, Not(HasSubstr("last step")));
}

TEST(FailureReportTest, SignalsAreNegativeAndNamed) {
  JobOutcome outcome = FailedOutcome();
  outcome.failure->root.worker->signal = SIGSEGV;
  outcome.failure->root.worker->last_step = 41;
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, HasSubstr("  exitcode  : -11 (pid: 4711) SIGSEGV\n"));
  EXPECT_THAT(text, HasSubstr("Signal 11 (SIGSEGV) received by PID 4711"));
  EXPECT_THAT(text, HasSubstr("  last step : 41\n"));
}

TEST(FailureReportTest, CoreDumpIsReportedWithWhereToFindIt) {
  JobOutcome outcome = FailedOutcome();
  WorkerExit& worker = *outcome.failure->root.worker;
  worker.dumped_core = true;
  for (const int signal : {SIGSEGV, SIGABRT}) {
    worker.signal = signal;
    const std::string text = FormatFailureReport(outcome, {"x"});
    EXPECT_THAT(text, HasSubstr(SignalName(signal) + " (core dumped)\n"));
    EXPECT_THAT(text, HasSubstr("core_pattern"));
    EXPECT_THAT(text, Not(HasSubstr("ulimit -c")));
  }
  worker.dumped_core = false;
  worker.signal = SIGSEGV;
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, Not(HasSubstr("core_pattern")));
  EXPECT_THAT(text, Not(HasSubstr("core dumped")));
  EXPECT_THAT(text, HasSubstr("ulimit -c"));
}

TEST(FailureReportTest, ShowsOnlyTheLastLinesWithoutControlCharacters) {
  JobOutcome outcome = FailedOutcome();
  for (int i = 0; i < 30; ++i) {
    outcome.failure->root.worker->stderr_tail.push_back("\x1b[1mline\a " + std::to_string(i));
  }
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, Not(HasSubstr("| line 9\n")));
  EXPECT_THAT(text, HasSubstr("last 20 lines of standard error:\n    | line 10\n"));
  EXPECT_THAT(text, HasSubstr("| line 29\n"));
}

TEST(FailureReportTest, FailureOfANodeHasNoRank) {
  JobOutcome outcome = FailedOutcome();
  outcome.failure->root.worker.reset();
  outcome.failure->root.kind = CauseKind::kNodeLost;
  outcome.failure->root.what = "node n1 fell silent";
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, HasSubstr("what      : node n1 fell silent"));
  EXPECT_THAT(text, Not(HasSubstr("rank      :")));
}

TEST(FailureReportTest, JoinTimeoutHasItsOwnErrorNameAndListsEarlierFailures) {
  JobOutcome outcome = FailedOutcome();
  Failure before = outcome.failure->root;
  before.what = "rank 5 exited with 7";
  before.worker->error_message = "ValueError: no";
  outcome.failure->others = {before};
  outcome.failure->root = Failure{};
  outcome.failure->root.kind = CauseKind::kJoinTimeout;
  outcome.failure->root.what = "too few nodes within 5 s";
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, StartsWith("fsdprun: RendezvousTimeoutError: too few nodes for x\n===="));
  EXPECT_THAT(text, HasSubstr("Before that (1 of 1):\n[1]: rank 5 exited with 7 (host: n1 "
                              "(10.0.0.1), log: /logs/1/stderr.log)\n  ValueError: no\n"));
  EXPECT_THAT(text, Not(HasSubstr("consequence")));
}

TEST(FailureReportTest, ShowsAtMostThreeOtherFailures) {
  JobOutcome outcome = FailedOutcome();
  outcome.failure->others.assign(5, outcome.failure->root);
  outcome.failure->other_failures = 9;
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, HasSubstr("Other failures (3 of 9):\n[1]: "));
  EXPECT_THAT(text, Not(HasSubstr("[4]: ")));
}

TEST(FailureReportTest, NoReportWithoutAFailure) {
  EXPECT_EQ(FormatFailureReport(JobOutcome{}, {"x"}), "");
  EXPECT_EQ(LauncherErrorJson(JobOutcome{}), "");
}

TEST(FailureReportTest, ErrorJsonKeepsTheWorkersMessageAndAddsTheCode) {
  JobOutcome outcome = FailedOutcome();
  WorkerExit& worker = *outcome.failure->root.worker;
  worker.error_json =
      R"({"message": {"message": "E: m", "extraInfo": {"py_callstack": "s", "timestamp": "3"}}})";
  worker.error_message = "E: m";
  const auto json = nlohmann::json::parse(LauncherErrorJson(outcome));
  EXPECT_EQ(json["message"]["message"], "E: m");
  EXPECT_EQ(json["message"]["extraInfo"]["py_callstack"], "s");
  EXPECT_EQ(json["message"]["errorCode"], 7);
  worker.error_json = "{";
  worker.error_message = "bad \xff byte";
  EXPECT_EQ(nlohmann::json::parse(LauncherErrorJson(outcome))["message"]["errorCode"], 7);
}

TEST(StripControlTest, RemovesEscapesAndKeepsUtf8) {
  EXPECT_EQ(StripControl("a\tb\x1b[31;1mred\x1b[0m\r\n\x07"), "a bred ");
  EXPECT_EQ(StripControl("line one\nline two"), "line one line two");
  EXPECT_EQ(StripControl("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(StripControl("cut \x1b["), "cut ");
  EXPECT_EQ(StripControl("\x1b"), "");
}

TEST(FailureHintTest, ErrorTextTakesPrecedenceOverSignalsExceptSigkill) {
  Failure failure;
  failure.worker = WorkerExit{};
  failure.worker->signal = SIGKILL;
  EXPECT_THAT(FailureHint(failure), HasSubstr("out-of-memory"));
  failure.worker->stderr_tail = {"ModuleNotFoundError: No module named 'x'"};
  EXPECT_THAT(FailureHint(failure), HasSubstr("out-of-memory"));
  failure.worker->signal = SIGABRT;
  EXPECT_THAT(FailureHint(failure), HasSubstr("install the module"));
  failure.worker->stderr_tail = {"[W ProcessGroupNCCL.cpp:1] Warning: destroy it"};
  EXPECT_THAT(FailureHint(failure), HasSubstr("aborted itself"));
  failure.worker->stderr_tail = {"DistBackendError: NCCL error in: x.cpp"};
  EXPECT_THAT(FailureHint(failure), HasSubstr("NCCL_DEBUG"));
  failure.worker = WorkerExit{.exit_code = 78};
  EXPECT_THAT(FailureHint(failure), HasSubstr("never work"));
  failure.worker->exit_code = 79;
  EXPECT_THAT(FailureHint(failure), HasSubstr("went away first"));
  failure.worker->exit_code = 1;
  EXPECT_EQ(FailureHint(failure), "");
  for (int kind = 1; kind <= static_cast<int>(CauseKind::kCannotStart); ++kind) {
    failure.kind = static_cast<CauseKind>(kind);
    EXPECT_NE(FailureHint(failure), "") << kind;
  }
}

TEST(ProgressLineTest, ShowsWhatIsKnown) {
  EXPECT_EQ(FormatProgressLine({3, 10, "loss 2"}), "step 3/10 loss 2");
  EXPECT_EQ(FormatProgressLine({3, -1, ""}), "step 3");
  EXPECT_EQ(FormatProgressLine({-1, -1, "a\x1b[2Kb"}), "ab");
}

}  // namespace
}  // namespace fsdprun
