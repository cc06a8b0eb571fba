#include "worker/metrics/progress.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace fsdprun::worker {
namespace {

const StepMetrics kMetrics{.step = 5,
                           .loss = 2.31F,
                           .grad_norm = 0.92F,
                           .lr = 3e-4,
                           .tokens = 1280,
                           .tokens_per_second = 12345,
                           .step_seconds = 0.1,
                           .memory_bytes = int64_t{410} << 20};

TEST(ProgressTest, LineHasAllNumbers) {
  EXPECT_EQ(FormatProgress(kMetrics, 192),
            "loss 2.3100 grad 0.92 lr 3.00e-04 12.3k tok/s 410 MiB ETA 3m12s");
  StepMetrics known = kMetrics;
  known.mfu = 0.414;
  EXPECT_EQ(FormatProgress(known, 192),
            "loss 2.3100 grad 0.92 lr 3.00e-04 12.3k tok/s 41% MFU 410 MiB ETA 3m12s");
}

TEST(ProgressTest, DurationsReadAsPeopleSayThem) {
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatDuration(59.4), "59s");
  EXPECT_EQ(FormatDuration(3599), "59m59s");
  EXPECT_EQ(FormatDuration(4 * 3600 + 5 * 60), "4h05m");
  EXPECT_EQ(FormatDuration(51 * 3600), "2d03h");
  EXPECT_EQ(FormatDuration(-1), "-");
  EXPECT_EQ(FormatDuration(std::nan("")), "-");
}

TEST(ProgressTest, EtaFollowsTheRecentSpeed) {
  EtaEstimate eta;
  eta.Record(1);
  EXPECT_DOUBLE_EQ(eta.SecondsFor(10), 10);
  for (int i = 0; i < 200; ++i) {
    eta.Record(3);
  }
  EXPECT_NEAR(eta.SecondsFor(10), 30, 1e-6);
}

TEST(ProgressTest, PlainViewPrintsEveryFewStepsAndTheLast) {
  ControlChannel none(-1);
  testing::internal::CaptureStdout();
  {
    Progress progress(ProgressView::kPlain, 5, 2, none);
    for (int64_t step = 1; step <= 5; ++step) {
      StepMetrics metrics = kMetrics;
      metrics.step = step;
      progress.Step(metrics);
    }
    progress.Event("hello");
  }
  const std::string output = testing::internal::GetCapturedStdout();
  EXPECT_EQ(output.find("step 1/5"), std::string::npos);
  EXPECT_EQ(output.find("step 3/5"), std::string::npos);
  EXPECT_NE(output.find("step 2/5 loss 2.3100"), std::string::npos);
  EXPECT_NE(output.find("step 4/5"), std::string::npos);
  EXPECT_NE(output.find("step 5/5"), std::string::npos);
  EXPECT_NE(output.find("\nhello\n"), std::string::npos);
  EXPECT_EQ(output.find('\r'), std::string::npos);
}

TEST(ProgressTest, OtherRanksAreSilent) {
  ControlChannel none(-1);
  testing::internal::CaptureStdout();
  Progress progress(ProgressView::kNone, 5, 1, none);
  progress.Step(kMetrics);
  progress.Event("hello");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

/// The standard output of five steps, 40 ms each, and an event in between, and the records the
/// agent got.
struct Shown {
  std::string output;
  std::vector<nlohmann::json> records;
};

Shown ShowFiveSteps(ProgressView view) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  testing::internal::CaptureStdout();
  {
    ControlChannel channel(ends[0]);
    Progress::Clock::time_point now = Progress::Clock::now();
    Progress progress(view, 5, 1, channel, [&now] { return now; });
    for (int64_t step = 1; step <= 5; ++step) {
      StepMetrics metrics = kMetrics;
      metrics.step = step;
      progress.Step(metrics);
      now += std::chrono::milliseconds(40);
      if (step == 1) {
        progress.Event("hello");
      }
    }
  }
  Shown shown{testing::internal::GetCapturedStdout(), {}};
  std::string sent(8192, '\0');
  sent.resize(static_cast<size_t>(read(ends[1], sent.data(), sent.size())));
  close(ends[1]);
  for (size_t begin = 0; begin < sent.size(); begin = sent.find('\n', begin) + 1) {
    shown.records.push_back(
        nlohmann::json::parse(sent.substr(begin, sent.find('\n', begin) - begin)));
  }
  return shown;
}

TEST(ProgressTest, LauncherViewSendsAtMostTenLinesASecondAndTheLast) {
  const Shown shown = ShowFiveSteps(ProgressView::kLauncher);
  EXPECT_EQ(shown.output, "hello\n");
  ASSERT_EQ(shown.records.size(), 3u);
  EXPECT_EQ(shown.records[0]["step"], 1);
  EXPECT_EQ(shown.records[1]["step"], 4);  // 120 ms later
  EXPECT_EQ(shown.records[2]["step"], 5);  // the last, 40 ms later
  EXPECT_EQ(shown.records.back()["total"], 5);
  EXPECT_TRUE(shown.records.back()["text"].get<std::string>().starts_with("loss 2.3100"));
}

TEST(ProgressTest, TerminalViewRedrawsOneLineAndKeepsEvents) {
  const std::string output = ShowFiveSteps(ProgressView::kTerminal).output;
  EXPECT_TRUE(output.starts_with("\r\033[K\033[?7lstep 1/5 loss 2.3100")) << output;
  EXPECT_NE(output.find("\r\033[Khello\n"), std::string::npos) << output;
  EXPECT_NE(output.find("\r\033[K\033[?7lstep 4/5"), std::string::npos) << output;
  EXPECT_NE(output.find("\r\033[K\033[?7lstep 5/5"), std::string::npos) << output;
  EXPECT_EQ(output.find("step 2/5"), std::string::npos) << output;
  EXPECT_EQ(output.rfind("\033[?7l") < output.rfind("\033[?7h"), true) << "lines wrap again";
  EXPECT_TRUE(output.ends_with("\n")) << "the shell's prompt begins on a line of its own";
}

}  // namespace
}  // namespace fsdprun::worker
