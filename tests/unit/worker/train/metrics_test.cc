#include "worker/train/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

namespace fsdprun::worker {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(MetricsTest, RecordHasTheContractsKeysAndReadsBackExactly) {
  StepMetrics metrics{7, std::nextafter(2.0F, 3.0F), 0.1F, 1.0 / 3.0, 1792, 1234.5, 0.25, 4096};
  const auto record = nlohmann::ordered_json::parse(FormatStepRecord(metrics));
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) {
    keys.push_back(key);
  }
  EXPECT_EQ(keys, (std::vector<std::string>{"step", "loss", "grad_norm", "lr", "tokens",
                                            "tokens_per_second", "step_seconds", "memory_bytes"}));
  EXPECT_EQ(static_cast<float>(record["loss"].get<double>()), metrics.loss);
  EXPECT_EQ(record["loss"].get<double>(), double{metrics.loss});
  EXPECT_EQ(record["lr"].get<double>(), 1.0 / 3.0);
  EXPECT_EQ(record["step"], 7);
}

TEST(MetricsTest, EvalRecordHasStepAndLoss) {
  EXPECT_EQ(FormatEvalRecord(3, 0.5), R"({"step": 3, "eval_loss": 0.5})");
}

TEST(MetricsTest, KeepsWholeRecordsUpToTheResumedStep) {
  const std::string one = FormatEvalRecord(1, 1) + "\n", two = FormatEvalRecord(2, 1) + "\n",
                    three = FormatEvalRecord(3, 1) + "\n";
  EXPECT_EQ(KeptRecords(one + two + three, 2), one + two);
  EXPECT_EQ(KeptRecords(one + two + three, 9), one + two + three);
  EXPECT_EQ(KeptRecords(one + two.substr(0, 9), 9), one);
  EXPECT_EQ(KeptRecords(one + "garbage\n" + two, 9), one);
  EXPECT_EQ(KeptRecords("", 9), "");
}

class MetricsLogTest : public testing::Test {
 protected:
  ~MetricsLogTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "metrics_" + std::to_string(getpid());
  const std::string path_ = folder_ + "/deep/metrics.jsonl";
};

TEST_F(MetricsLogTest, ResumingRemovesRecordsOfLostStepsAndAppends) {
  {
    MetricsLog log(path_, 0);
    for (int step = 1; step <= 4; ++step) {
      log.Append(FormatEvalRecord(step, step));
    }
  }
  MetricsLog(path_, 2).Append(FormatEvalRecord(3, 30));
  EXPECT_EQ(ReadAll(path_), FormatEvalRecord(1, 1) + "\n" + FormatEvalRecord(2, 2) + "\n" +
                                FormatEvalRecord(3, 30) + "\n");
}

TEST_F(MetricsLogTest, StartingAnewKeepsTheRecordsOfEarlierRuns) {
  for (int run = 0; run < 3; ++run) {
    MetricsLog(path_, 0).Append(FormatEvalRecord(1, run));
  }
  EXPECT_EQ(ReadAll(path_ + ".1"), FormatEvalRecord(1, 0) + "\n");
  EXPECT_EQ(ReadAll(path_ + ".2"), FormatEvalRecord(1, 1) + "\n");
  EXPECT_EQ(ReadAll(path_), FormatEvalRecord(1, 2) + "\n");
  // A run that did nothing, and a file that others have linked, leave nothing to move.
  { const MetricsLog log(path_, 0); }
  { const MetricsLog log(path_, 0); }
  EXPECT_FALSE(std::filesystem::exists(path_ + ".4"));
  std::filesystem::create_symlink(path_ + ".1", folder_ + "/link");
  { const MetricsLog log(folder_ + "/link", 0); }
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ + "/link"));
}

TEST_F(MetricsLogTest, CheckingDoesNotChangeTheFile) {
  MetricsLog(path_, 0).Append(FormatEvalRecord(1, 1));
  MetricsLog::CheckWritable(path_);
  EXPECT_EQ(ReadAll(path_), FormatEvalRecord(1, 1) + "\n");
}

TEST_F(MetricsLogTest, SomeOtherFileIsRefusedAndLeftAsItIs) {
  std::filesystem::create_directories(folder_);
  const std::string path = folder_ + "/thesis.txt";
  for (const std::string text : {"years of work\n", "x", "{}\n", "{\"steps\": 1}\n"}) {
    std::ofstream(path) << text;
    EXPECT_THROW(MetricsLog::CheckWritable(path), std::runtime_error) << text;
    EXPECT_THROW(MetricsLog(path, 0), std::runtime_error) << text;
    EXPECT_EQ(ReadAll(path), text);
  }
}

TEST_F(MetricsLogTest, FileWhoseFirstRecordIsTornIsStartedAnew) {
  std::filesystem::create_directories(folder_ + "/deep");
  for (const std::string text : {"{\"st", "{\"step\": 1, \"lo"}) {
    std::ofstream(path_) << text;
    MetricsLog(path_, 0).Append(FormatEvalRecord(1, 1));
    EXPECT_EQ(ReadAll(path_), FormatEvalRecord(1, 1) + "\n");
  }
}

class MetricsPipeTest : public MetricsLogTest {
 protected:
  MetricsPipeTest() {
    std::filesystem::create_directories(folder_);
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  int OpenReader(int flags) const { return open(path_.c_str(), flags | O_NONBLOCK | O_CLOEXEC); }

  const std::string path_ = folder_ + "/fifo";
};

TEST_F(MetricsPipeTest, OneThatNobodyReadsIsRefused) {
  for (const int completed_steps : {0, 3}) {
    try {
      MetricsLog log(path_, completed_steps);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "cannot open metrics file " + path_ +
                                  ": nobody reads from this pipe; choose another metrics.jsonl or "
                                  "make room");
    }
  }
}

TEST_F(MetricsPipeTest, PipesNeitherHangNorAreRead) {
  const int reader = OpenReader(O_RDWR);
  // Of another writer: neither a record to keep nor a file of the user's to leave alone.
  const std::string before = FormatEvalRecord(1, 1) + "\nno record\n";
  ASSERT_EQ(write(reader, before.data(), before.size()), static_cast<ssize_t>(before.size()));
  MetricsLog::CheckWritable(path_);
  MetricsLog(path_, 3).Append("x");
  MetricsLog(path_, 0).Append("y");
  std::string text(1000, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(reader, text.data(), text.size()))));
  EXPECT_EQ(text, before + "x\ny\n");
  close(reader);
}

TEST_F(MetricsPipeTest, RecordThatFillsThePipeWaitsForTheReader) {
  const int reader = OpenReader(O_RDONLY);
  ASSERT_GE(fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  auto log = std::make_unique<MetricsLog>(path_, 0);
  ASSERT_EQ(fcntl(reader, F_SETFL, 0), 0);  // reads wait from here on, until the writer is gone
  const std::string record(100'000, 'r');
  std::string error;
  std::thread writer([&] {
    try {
      log->Append(record);
    } catch (const std::runtime_error& failure) {
      error = failure.what();
    }
    log.reset();
  });
  std::string text;
  char part[4096];
  for (ssize_t count; (count = read(reader, part, sizeof part)) > 0;) {
    text.append(part, static_cast<size_t>(count));
  }
  writer.join();
  close(reader);
  EXPECT_EQ(error, "");
  EXPECT_TRUE(text == record + "\n") << text.size();
}

TEST_F(MetricsLogTest, EmptyPathDoesNothing) {
  MetricsLog log("", 0);
  log.Append("x");
  MetricsLog::CheckWritable("");
}

TEST_F(MetricsLogTest, FullAndImpossibleTargetsAreNamed) {
  EXPECT_THROW(MetricsLog("/proc/nothing/metrics.jsonl", 0), std::runtime_error);
  MetricsLog full("/dev/full", 0);
  try {
    full.Append("x");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "cannot write metrics file /dev/full: No space left on device; choose another "
                 "metrics.jsonl or make room");
  }
}

}  // namespace
}  // namespace fsdprun::worker
