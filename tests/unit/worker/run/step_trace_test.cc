#include "worker/run/step_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>

#include "tests/unit/worker/run/small_run.h"

namespace fsdprun::worker {
namespace {

class StepTraceTest : public testing::Test {
 protected:
  ~StepTraceTest() override { std::filesystem::remove_all(folder_); }

  void Step(StepTrace& trace, int64_t step) {
    trace.BeginStep(step);
    run_.vitals.Enter(contract::WorkerPhase::kForward);
    run_.vitals.Enter(contract::WorkerPhase::kOptimizer);
    trace.EndStep();
  }
  void Steps(int64_t last, int64_t first = 1) {
    StepTrace trace(run_.context());
    for (int64_t step = first; step <= last; ++step) {
      Step(trace, step);
    }
    trace.End();
  }
  void Want(const std::string& folder, int64_t first, int64_t last) {
    run_.config.metrics.trace_dir = folder;
    run_.config.metrics.trace_first = first;
    run_.config.metrics.trace_last = last;
  }
  std::string Trace() const {
    return std::filesystem::exists(folder_ + "/trace.json")
               ? ReadSmallFile(folder_ + "/trace.json", size_t{1} << 20)
               : "";
  }

  const std::string folder_ = testing::TempDir() + "timeline_" + std::to_string(getpid());
  SmallRun run_;
};

TEST_F(StepTraceTest, FolderThatCannotBeMadeIsToldAndCostsNothingElse) {
  Want("/dev/null/timelines", 1, 1);
  testing::internal::CaptureStderr();
  Steps(2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: no timeline of this rank: "), std::string::npos) << said;
  EXPECT_EQ(said.find("warning: ", 1), std::string::npos) << said;
}

TEST_F(StepTraceTest, NothingIsRecordedUnlessItIsWanted) {
  Want("", 1, 2);
  Steps(2);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(StepTraceTest, HasTheStepsThatAreWantedWithTheirPhases) {
  Want(folder_, 2, 3);
  Steps(4);
  EXPECT_NE(Trace().find("\"step 2\""), std::string::npos) << Trace();
  EXPECT_NE(Trace().find("\"step 3\""), std::string::npos);
  EXPECT_NE(Trace().find("\"forward\""), std::string::npos);
  EXPECT_EQ(Trace().find("\"step 1\""), std::string::npos);
  EXPECT_EQ(Trace().find("\"step 4\""), std::string::npos);
}

TEST_F(StepTraceTest, StepsAreCountedFromTheFirstOfTheStart) {
  Want(folder_, 2, 3);
  Steps(/*last=*/104, /*first=*/101);
  EXPECT_NE(Trace().find("\"step 102\""), std::string::npos) << Trace();
  EXPECT_NE(Trace().find("\"step 103\""), std::string::npos);
  EXPECT_EQ(Trace().find("\"step 101\""), std::string::npos);
  EXPECT_EQ(Trace().find("\"step 104\""), std::string::npos);
}

TEST_F(StepTraceTest, TimelinesArePutTogetherBesideTheSteps) {
  Want(folder_, 1, 1);
  std::promise<void> may_go;
  const std::shared_future<void> goes = may_go.get_future().share();
  const StepTrace::Merge merge = [goes](const auto& files, std::ostream& out) {
    goes.wait();
    MergeTraces(files, out);
  };
  StepTrace trace(run_.context(), merge, {});
  Step(trace, 1);
  Step(trace, 2);
  EXPECT_EQ(Trace(), "");
  may_go.set_value();
  testing::internal::CaptureStdout();
  trace.End();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "timeline " + folder_ + "/trace.json\n");
  EXPECT_NE(Trace().find("\"step 1\""), std::string::npos);
}

TEST_F(StepTraceTest, MergeThatHangsDoesNotHoldUpTheEnd) {
  Want(folder_, 1, 1);
  std::promise<void> may_go;
  const std::shared_future<void> goes = may_go.get_future().share();
  const auto begun = std::make_shared<std::promise<void>>();
  // It throws, so that no file gets a name while the folder is removed.
  const StepTrace::Merge merge = [goes, begun](const auto&, std::ostream&) {
    begun->set_value();
    goes.wait();
    throw std::runtime_error("the test is over");
  };
  {
    StepTrace trace(run_.context(), merge, {.merge_max = std::chrono::milliseconds(1)});
    Step(trace, 1);
    testing::internal::CaptureStderr();
    trace.End();
    EXPECT_NE(testing::internal::GetCapturedStderr().find("were not put together in time"),
              std::string::npos);
  }
  begun->get_future().wait();
  may_go.set_value();
}

TEST_F(StepTraceTest, WhatNoViewerOpensIsNotPutTogether) {
  Want(folder_, 1, 1);
  StepTrace trace(run_.context(), MergeTraces, {.merged_bytes_max = 10});
  testing::internal::CaptureStderr();
  Step(trace, 1);
  trace.End();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no timeline of all ranks: the files of the ranks are larger than"),
            std::string::npos)
      << said;
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/rank-0.json"));
  EXPECT_EQ(Trace(), "");
}

TEST_F(StepTraceTest, RunThatEndsBeforeTheLastStepHasThoseThatThereWere) {
  Want(folder_, 2, 9);
  Steps(3);
  EXPECT_NE(Trace().find("\"step 3\""), std::string::npos) << Trace();
}

}  // namespace
}  // namespace fsdprun::worker
