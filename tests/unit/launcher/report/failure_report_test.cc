#include "launcher/report/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <limits>
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

TEST(FailureReportTest, NamesNodesThatWereLeftOut) {
  JobOutcome outcome = FailedOutcome();
  EXPECT_THAT(FormatFailureReport(outcome, {"train.py"}), Not(HasSubstr("Left out")));
  outcome.left_out = {"node n2 \033[31mkept failing"};
  EXPECT_THAT(FormatFailureReport(outcome, {"train.py"}),
              HasSubstr("used (--max-restarts).\nLeft out    : node n2 kept failing.\n"));
}

TEST(FailureReportTest, HasTorchrunsLabelsAndWhatWasDone) {
  const std::string text = FormatFailureReport(FailedOutcome(), {"train.py"});
  for (const char* part :
       {"\ntrain.py FAILED\n",
        "Root Cause (first observed failure):", "  time      : 1970-01-01_00:00:01\n",
        "  host      : n1 (10.0.0.1)\n", "  rank      : 5 (local_rank: 1)\n",
        "  exitcode  : 7 (pid: 4711)\n", "  error_file: <N/A>\n",
        "  traceback : To enable traceback see: "
        "https://pytorch.org/docs/stable/elastic/errors.html\n",
        "  log       : /logs/1/stderr.log\n",
        "7 other workers were stopped; 1 later failure is considered a consequence; 2 of 3 "
        "restarts "
        "used"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, StartsWith("fsdprun: torch.distributed.elastic.multiprocessing.errors."
                               "ChildFailedError: train.py failed\n===="));
  EXPECT_THAT(text, Not(HasSubstr("last step")));
}

TEST(FailureReportTest, TimeIsThatOfTheErrorFile) {
  JobOutcome outcome = FailedOutcome();
  outcome.failure->root.worker->error_timestamp_s = 10;
  EXPECT_THAT(FormatFailureReport(outcome, {"x"}), HasSubstr(": 1970-01-01_00:00:10\n"));
  outcome.failure->root.worker->error_timestamp_s = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(FormatFailureReport(outcome, {"x"}), HasSubstr("9223372036854775807 s since 1970\n"));
}

TEST(FailureReportTest, AMessageThatIsItsOwnStackIsPrintedOnce) {
  JobOutcome outcome = FailedOutcome();
  WorkerExit& worker = *outcome.failure->root.worker;
  worker.error_message = worker.traceback = "hello\nworld\n";
  EXPECT_THAT(FormatFailureReport(outcome, {"x"}),
              HasSubstr("  traceback : hello\n    world\n  log "));
  worker.traceback = "File x, line 1";
  EXPECT_THAT(FormatFailureReport(outcome, {"x"}),
              HasSubstr("  traceback : hello world \n    File x, line 1\n  log "));
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
  EXPECT_THAT(text, StartsWith("fsdprun: torch.distributed.elastic.rendezvous.api."
                               "RendezvousTimeoutError: too few nodes for x\n===="));
  EXPECT_THAT(text, HasSubstr("Failures before that:\n[1]:\n  time      : 1970-01-01_00:00:01\n"
                              "  host      : n1 (10.0.0.1)\n  rank      : 5 "));
  EXPECT_THAT(text, HasSubstr("  traceback : ValueError: no\n  log "));
  EXPECT_THAT(text, Not(HasSubstr("consequence")));
}

TEST(FailureReportTest, SaysSoIfThereIsNoOtherFailure) {
  JobOutcome outcome = FailedOutcome();
  outcome.failure->other_failures = 0;
  EXPECT_THAT(FormatFailureReport(outcome, {"x"}),
              HasSubstr("\nFailures:\n  <NO_OTHER_FAILURES>\n----"));
}

TEST(FailureReportTest, ShowsAtMostThreeOtherFailures) {
  JobOutcome outcome = FailedOutcome();
  Failure other = outcome.failure->root;
  other.worker->stderr_tail = {"last words"};
  outcome.failure->others.assign(5, other);
  outcome.failure->other_failures = 9;
  const std::string text = FormatFailureReport(outcome, {"x"});
  EXPECT_THAT(text, HasSubstr("\nFailures:\n[1]:\n  time      : "));
  EXPECT_THAT(text, HasSubstr("[3]:\n"));
  EXPECT_THAT(text, HasSubstr("  and 6 more\n"));
  EXPECT_THAT(text, Not(HasSubstr("[4]:")));
  EXPECT_THAT(text, Not(HasSubstr("last words")));
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
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("out-of-memory"));
  failure.worker->stderr_tail = {"ModuleNotFoundError: No module named 'x'"};
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("out-of-memory"));
  failure.worker->signal = SIGABRT;
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("install the module"));
  failure.worker->stderr_tail = {"[W ProcessGroupNCCL.cpp:1] Warning: destroy it"};
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("aborted itself"));
  failure.worker->stderr_tail = {"DistBackendError: NCCL error in: x.cpp"};
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("NCCL_DEBUG"));
  failure.worker = WorkerExit{.exit_code = 78};
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("never work"));
  failure.worker->exit_code = 79;
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("went away first"));
  failure.worker->exit_code = 1;
  EXPECT_EQ(FailureHint(failure, {}), "");
  for (int kind = 1; kind <= static_cast<int>(CauseKind::kWorkerHung); ++kind) {
    failure.kind = static_cast<CauseKind>(kind);
    EXPECT_NE(FailureHint(failure, {}), "") << kind;
  }
}

TEST(FailureHintTest, AStoreOfTheScriptsOwnIsTold) {
  Failure failure;
  failure.worker = WorkerExit{.exit_code = 1};
  failure.worker->stderr_tail = {
      "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while "
      "trying to connect to (node0, 29501)."};
  EXPECT_THAT(FailureHint(failure, {"10.0.0.1", 29500}),
              HasSubstr("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"));
  EXPECT_EQ(FailureHint(failure, {"10.0.0.1", 29501}), "");
  failure.worker->stderr_tail = {"client socket has timed out", "connect to (", "connect to (x)"};
  EXPECT_EQ(FailureHint(failure, {"10.0.0.1", 29500}), "");
}

TEST(FailureHintTest, AnExpiredTimerIsNoMatterOfMemory) {
  Failure failure;
  failure.worker = WorkerExit{.signal = SIGKILL};
  failure.worker->error_message = "WatchdogTimeout: timer 'step' expired";
  EXPECT_THAT(FailureHint(failure, {}), HasSubstr("timed section"));
}

TEST(ProgressLineTest, ShowsWhatIsKnown) {
  EXPECT_EQ(FormatProgressLine({3, 10, "loss 2"}), "step 3/10 loss 2");
  EXPECT_EQ(FormatProgressLine({3, -1, ""}), "step 3");
  EXPECT_EQ(FormatProgressLine({-1, -1, "a\x1b[2Kb"}), "ab");
}

}  // namespace
}  // namespace fsdprun
