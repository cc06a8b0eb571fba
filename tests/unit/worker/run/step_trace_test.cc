#include "worker/run/step_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/unit/worker/run/small_run.h"

namespace fsdprun::worker {
namespace {

class StepTraceTest : public testing::Test {
 protected:
  ~StepTraceTest() override { std::filesystem::remove_all(folder_); }

  void Steps(int64_t last) {
    StepTrace trace(run_.context());
    for (int64_t step = 1; step <= last; ++step) {
      trace.BeginStep(step);
      run_.vitals.Enter(contract::WorkerPhase::kForward);
      run_.vitals.Enter(contract::WorkerPhase::kOptimizer);
      trace.EndStep();
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

TEST_F(StepTraceTest, RunThatEndsBeforeTheLastStepHasThoseThatThereWere) {
  Want(folder_, 2, 9);
  Steps(3);
  EXPECT_NE(Trace().find("\"step 3\""), std::string::npos) << Trace();
}

}  // namespace
}  // namespace fsdprun::worker
