#include "worker/metrics/run_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
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
  report.OpenMetrics(0, {}, is_not_replaced_);
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
    report.OpenMetrics(0, {}, is_not_replaced_);
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
    report.OpenMetrics(0, {}, is_not_replaced_);
    report.Step(At(2));
    report.Step(At(4));
  });
  EXPECT_NE(warnings.find("/dev/full: No space left on device"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("training goes on"), std::string::npos);
  EXPECT_EQ(warnings.find("warning: ", 1), std::string::npos) << warnings;
}

TEST_F(RunReportTest, WarningIsInTheMetricsToo) {
  RunReport report(Options(path_), none_);
  report.OpenMetrics(0, {}, is_not_replaced_);
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
    report.OpenMetrics(0, {}, [] { return true; });
    report.Step(At(2));
  });
  EXPECT_EQ(warnings, "warning: metrics file " + path_ +
                          " is left alone, because another start has taken over /checkpoints; no "
                          "more metrics are written\n");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(RunReportTest, FileThatCannotBeWrittenEndsTheRun) {
  RunReport report(Options("/dev/null/metrics.jsonl"), none_);
  EXPECT_THROW(report.OpenMetrics(0, {}, is_not_replaced_), MetricsError);
}

}  // namespace
}  // namespace fsdprun::worker
