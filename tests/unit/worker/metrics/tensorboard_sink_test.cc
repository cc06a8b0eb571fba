#include "worker/metrics/tensorboard_sink.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "worker/metrics/tensorboard_events.h"

namespace fsdprun::worker {
namespace {

class TensorBoardSinkTest : public testing::Test {
 protected:
  ~TensorBoardSinkTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      files.push_back(entry.path().string());
    }
    return files;
  }
  /// The events of a file, whose frames must be right.
  static std::vector<std::string> EventsIn(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(in), {}};
    std::vector<std::string> events;
    for (size_t begin = 0; begin < content.size();) {
      uint64_t length = 0;
      std::memcpy(&length, content.data() + begin, sizeof length);
      events.push_back(content.substr(begin + 12, length));
      EXPECT_EQ(content.substr(begin, 16 + length), tensorboard::Frame(events.back()));
      begin += 16 + length;
    }
    return events;
  }
  void Run(int64_t completed_steps, int64_t last_step) const {
    TensorBoardSink sink(folder_, "{}", {.every = 2, .total = 5});
    sink.Begin({.completed_steps = completed_steps});
    for (int64_t step = completed_steps + 1; step <= last_step; ++step) {
      sink.Step({.step = step, .loss = 1.5F});
    }
    sink.Evaluation(last_step, 2.5);
    sink.End();
  }

  const std::string folder_ = testing::TempDir() + "curves_" + std::to_string(getpid());
};

TEST_F(TensorBoardSinkTest, ReplacedProcessMakesNoFile) {
  TensorBoardSink sink(folder_, "{}", {.every = 1, .total = 5});
  EXPECT_THROW(sink.Begin({.is_replaced = [] { return true; }}), MetricsReplacedError);
  sink.Step({.step = 1});
  sink.End();
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(TensorBoardSinkTest, FileHasVersionConfigurationStepsAndEvaluations) {
  Run(0, 5);
  ASSERT_EQ(Files().size(), 1u);
  const std::vector<std::string> events = EventsIn(Files()[0]);
  // Version, start, configuration, steps 2, 4 and 5, the evaluation.
  ASSERT_EQ(events.size(), 7u);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  EXPECT_NE(events[2].find("config"), std::string::npos);
  EXPECT_NE(events[3].find("train/loss"), std::string::npos);
  EXPECT_EQ(events[3].find("mfu"), std::string::npos) << "nobody knows it";
  EXPECT_NE(events[6].find("eval/loss"), std::string::npos);
}

TEST_F(TensorBoardSinkTest, RunThatGoesBackReplacesLaterStepsToo) {
  {
    TensorBoardSink sink(folder_, "{}", {.every = 1, .total = 5});
    sink.Begin({});
    sink.Step({.step = 1});
    sink.Begin({.completed_steps = 0});
    sink.Step({.step = 1});
  }
  ASSERT_EQ(Files().size(), 2u);
  for (const std::string& file : Files()) {
    EXPECT_EQ(EventsIn(file).size(), 4u);
  }
}

TEST_F(TensorBoardSinkTest, EveryStartHasAFileThatReplacesLaterSteps) {
  Run(0, 4);
  Run(2, 5);
  ASSERT_EQ(Files().size(), 2u);
  size_t starts = 0;
  for (const std::string& file : Files()) {
    const std::string start = EventsIn(file)[1];
    // Without the wall time.
    const auto is_of = [&](int64_t step) {
      return start.substr(9) == tensorboard::StartEvent(0, step).substr(9);
    };
    starts += is_of(1) ? 1 : is_of(3) ? 10 : 100;
  }
  EXPECT_EQ(starts, 11u);
}

}  // namespace
}  // namespace fsdprun::worker
