#include "worker/metrics/run_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace fsdprun::worker {
namespace {

class RunReportTest : public testing::Test {
 protected:
  ~RunReportTest() override { std::filesystem::remove(path_); }

  RunReportOptions Options(const std::string& metrics_path, bool is_first_rank = true) const {
    return {.view = is_first_rank ? ProgressView::kPlain : ProgressView::kNone,
            .is_first_rank = is_first_rank,
            .total_steps = 5,
            .every_steps = 2,
            .metrics_path = metrics_path,
            .checkpoint_dir = "/checkpoints"};
  }
  std::vector<nlohmann::json> Records() const {
    std::vector<nlohmann::json> records;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }
  static StepMetrics At(int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    return metrics;
  }
  static std::string Caught(const std::function<void()>& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
  }

  const std::string path_ = testing::TempDir() + "run_report_" + std::to_string(getpid());
  const std::function<bool()> is_not_replaced_ = [] { return false; };
  ControlChannel none_{-1};
};

TEST_F(RunReportTest, RecordsEveryFewStepsTheLastAndEvaluations) {
  RunReport report(Options(path_), none_);
  report.OpenMetrics({.is_replaced = is_not_replaced_});
  for (int64_t step = 1; step <= 5; ++step) {
    report.Step(At(step));
  }
  report.Evaluation(5, 1.5);
  std::vector<int64_t> steps;
  for (const auto& record : Records()) {
    steps.push_back(record.at("step").get<int64_t>());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 5, 5}));
}

TEST_F(RunReportTest, OtherRanksTellAndRecordNothing) {
  testing::internal::CaptureStdout();
  RunReport report(Options(path_, /*is_first_rank=*/false), none_);
  FaultNotice notice;
  const std::string warnings = Caught([&] {
    report.OpenMetrics({.is_replaced = is_not_replaced_});
    report.Step(At(2));
    report.Evaluation(2, 1.5);
    report.Warn(notice, 2, "something");
  });
  EXPECT_EQ(warnings + testing::internal::GetCapturedStdout(), "");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(RunReportTest, FullDiskIsToldOnceAndTheRunGoesOn) {
  RunReport report(Options("/dev/full"), none_);
  const std::string warnings = Caught([&] {
    report.OpenMetrics({.is_replaced = is_not_replaced_});
    report.Step(At(2));
    report.Step(At(4));
  });
  EXPECT_NE(warnings.find("/dev/full: No space left on device"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("training goes on"), std::string::npos);
  EXPECT_EQ(warnings.find("warning: ", 1), std::string::npos) << warnings;
}

TEST_F(RunReportTest, WarningIsInTheMetricsToo) {
  RunReport report(Options(path_), none_);
  report.OpenMetrics({.is_replaced = is_not_replaced_});
  FaultNotice notice;
  EXPECT_EQ(Caught([&] { report.Warn(notice, 3, "the disk is full"); }),
            "warning: the disk is full\n");
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].at("warning"), "the disk is full");
  EXPECT_EQ(Records()[0].at("step"), 3);
}

TEST_F(RunReportTest, ReplacedProcessLeavesTheFileAlone) {
  RunReport report(Options(path_), none_);
  const std::string warnings = Caught([&] {
    report.OpenMetrics({.is_replaced = [] { return true; }});
    report.Step(At(2));
  });
  EXPECT_EQ(warnings, "warning: metrics file " + path_ +
                          " is left alone, because another start has taken over /checkpoints; no "
                          "more metrics are written\n");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(RunReportTest, RunThatGoesBackHasEachStepOnce) {
  RunReport report(Options(path_), none_);
  report.OpenMetrics({.origin = {.run = "r"}, .is_replaced = is_not_replaced_});
  for (const int64_t step : {2, 4}) {
    report.Step(At(step));
  }
  report.GoBackTo(2, 0);
  report.Step(At(4));
  std::vector<int64_t> steps;
  for (const auto& record : Records()) {
    steps.push_back(record.at("step").get<int64_t>());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4}));
}

TEST_F(RunReportTest, WhyARunWentBackStaysInItsRecords) {
  RunReport report(Options(path_), none_);
  report.OpenMetrics({.origin = {.run = "r"}, .is_replaced = is_not_replaced_});
  FaultNotice before;
  FaultNotice after;
  Caught([&] {
    report.Step(At(2));
    report.Warn(before, 4, "of a step that is undone");
    report.GoBackTo(2, 0);
    report.Warn(after, 2, "step 4 was bad");
    report.Step(At(4));
  });
  ASSERT_EQ(Records().size(), 3u);
  EXPECT_EQ(Records()[1].at("warning"), "step 4 was bad");
}

TEST_F(RunReportTest, FlopsAndTheirShareFollowFromTheSpeed) {
  RunReportOptions options = Options(path_);
  options.flops_per_token = 3e6;
  RunReport report(options, none_);
  report.SetPeakFlops(1e12);
  report.OpenMetrics({.is_replaced = is_not_replaced_});
  StepMetrics metrics = At(2);
  metrics.tokens_per_second = 1e5;
  report.Step(metrics);
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_DOUBLE_EQ(Records()[0].at("flops_per_second").get<double>(), 3e11);
  EXPECT_DOUBLE_EQ(Records()[0].at("mfu").get<double>(), 0.3);
}

TEST_F(RunReportTest, CurvesThatCannotBeWrittenAreToldAndCostNothingElse) {
  RunReportOptions options = Options(path_);
  options.tensorboard_dir = "/dev/null/curves";
  RunReport report(options, none_);
  const std::string warnings = Caught([&] {
    report.OpenMetrics({.is_replaced = is_not_replaced_});
    // The thread of the curves meets the fault some time; then a record is followed by a warning.
    const auto grows_by = [&] {
      const auto before = std::filesystem::file_size(path_);
      report.Evaluation(1, 1.5);
      return std::filesystem::file_size(path_) - before;
    };
    const auto of_a_record = grows_by();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (grows_by() <= of_a_record && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  });
  EXPECT_NE(warnings.find("cannot write /dev/null/curves/events.out.tfevents."), std::string::npos)
      << warnings;
  EXPECT_NE(warnings.find("training goes on"), std::string::npos) << warnings;
}

TEST_F(RunReportTest, CurvesThatLackTheirLastRecordsAreTold) {
  RunReportOptions options = Options(path_);
  options.tensorboard_dir = "/dev/null/curves";
  RunReport report(options, none_);
  const std::string warnings = Caught([&] {
    report.OpenMetrics({.is_replaced = is_not_replaced_});
    report.End();
  });
  EXPECT_NE(warnings.find("cannot write /dev/null/curves/events.out.tfevents."), std::string::npos)
      << warnings;
  EXPECT_NE(warnings.find("the last records are lost"), std::string::npos) << warnings;
  EXPECT_EQ(warnings.find("training goes on"), std::string::npos) << warnings;
}

TEST_F(RunReportTest, EndsWithASummaryAndAPictureOfTheLosses) {
  const auto said = [&](ProgressView view) {
    RunReportOptions options = Options("");
    options.view = view;
    testing::internal::CaptureStdout();
    {
      RunReport report(options, none_);
      report.OpenMetrics({.is_replaced = is_not_replaced_});
      for (int64_t step = 1; step <= 5; ++step) {
        StepMetrics metrics = At(step);
        metrics.loss = 10.0F / static_cast<float>(step);
        metrics.tokens = 320 * step;
        metrics.tokens_per_second = 640;
        metrics.step_seconds = 0.5;
        report.Step(metrics);
      }
      report.Checkpoint("/checkpoints/step-5");
      report.End();
    }
    return testing::internal::GetCapturedStdout();
  };
  const std::string plain = said(ProgressView::kPlain);
  EXPECT_NE(plain.find("summary\n  steps       1 to 5, 1600 tokens in "), std::string::npos)
      << plain;
  EXPECT_NE(plain.find("  checkpoint  /checkpoints/step-5\n"), std::string::npos) << plain;
  EXPECT_NE(plain.find("|*"), std::string::npos) << plain;
  const std::string drawn = said(ProgressView::kLauncher);
  EXPECT_NE(drawn.find("summary\n"), std::string::npos) << drawn;
  EXPECT_EQ(drawn.find("|*"), std::string::npos) << drawn;
}

TEST_F(RunReportTest, FileThatCannotBeWrittenEndsTheRun) {
  RunReport report(Options("/dev/null/metrics.jsonl"), none_);
  EXPECT_THROW(report.OpenMetrics({.is_replaced = is_not_replaced_}), MetricsError);
}

}  // namespace
}  // namespace fsdprun::worker
