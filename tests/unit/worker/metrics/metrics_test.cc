#include "worker/metrics/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun::worker {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(MetricsTest, RecordHasTheContractsKeysAndReadsBackExactly) {
  StepMetrics metrics{.step = 7,
                      .loss = std::nextafter(2.0F, 3.0F),
                      .grad_norm = 0.1F,
                      .lr = 1.0 / 3.0,
                      .tokens = 1792,
                      .tokens_per_second = 1234.5,
                      .step_seconds = 0.25,
                      .data_wait_seconds = 0.125,
                      .flops_per_second = 1e12,
                      .mfu = 0.375,
                      .memory_bytes = 4096};
  const auto record = nlohmann::ordered_json::parse(FormatStepRecord(metrics));
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) {
    keys.push_back(key);
  }
  EXPECT_EQ(keys,
            (std::vector<std::string>{"step", "loss", "grad_norm", "lr", "tokens",
                                      "tokens_per_second", "step_seconds", "data_wait_seconds",
                                      "flops_per_second", "mfu", "memory_bytes"}));
  EXPECT_EQ(static_cast<float>(record["loss"].get<double>()), metrics.loss);
  EXPECT_EQ(record["loss"].get<double>(), double{metrics.loss});
  EXPECT_EQ(record["lr"].get<double>(), 1.0 / 3.0);
  EXPECT_EQ(record["step"], 7);
}

TEST(MetricsTest, WhatIsNotKnownHasNoKey) {
  const auto record = nlohmann::json::parse(FormatStepRecord({.step = 1}));
  EXPECT_FALSE(record.contains("mfu"));
  EXPECT_FALSE(record.contains("flops_per_second"));
  EXPECT_EQ(record.at("data_wait_seconds"), 0);
}

TEST(MetricsTest, EvalRecordHasStepAndLoss) {
  EXPECT_EQ(FormatEvalRecord(3, 0.5), R"({"step": 3, "eval_loss": 0.5})");
}

TEST(MetricsTest, KeepsWholeRecordsUpToTheResumedStep) {
  const std::string one = FormatEvalRecord(1, 1) + "\n", two = FormatEvalRecord(2, 1) + "\n",
                    three = FormatEvalRecord(3, 1) + "\n";
  const auto kept = [](const std::string& content, int64_t steps) {
    return CutRecords(content, steps, "").kept;
  };
  EXPECT_EQ(kept(one + two + three, 2), one + two);
  EXPECT_EQ(kept(one + two + three, 9), one + two + three);
  EXPECT_EQ(kept(one + two.substr(0, 9), 9), one);
  EXPECT_EQ(kept(one + "garbage\n" + two, 9), one);
  EXPECT_EQ(kept("", 9), "");
}

std::string RecordOf(const std::string& run, int64_t step) {
  return "{\"step\": " + std::to_string(step) +
         (run.empty() ? std::string() : ", \"run\": \"" + run + "\"") + "}\n";
}

TEST(MetricsTest, OnlyOwnRecordsOfLostStepsAreCut) {
  struct Case {
    std::string kept, rest;
    bool loses_others;
  };
  const std::string mine = RecordOf("mine", 1), lost = RecordOf("mine", 3),
                    other = RecordOf("other", 1), untold = RecordOf("", 1);
  for (const Case& c : {Case{mine, lost + lost, false},
                        {mine, lost + "{\"step\": 4, \"ru", false},
                        {mine, lost + mine, true},
                        {mine + untold, "", false},
                        {untold + mine, lost, false},
                        {"", other, true},
                        {"", other + mine, true},
                        {mine, lost + other, true},
                        {mine, RecordOf("", 3), true},
                        {mine, "garbage\n" + lost, true}}) {
    const MetricsCut cut = CutRecords(c.kept + c.rest, 2, "mine");
    EXPECT_EQ(cut.kept, c.kept) << c.rest;
    EXPECT_EQ(cut.loses_others, c.loses_others) << c.kept << c.rest;
  }
  for (const std::string& record : {mine, other, untold, lost}) {
    const MetricsCut fresh = CutRecords(record, 0, "mine");
    EXPECT_EQ(fresh.kept, "");
    EXPECT_TRUE(fresh.loses_others);
  }
}

TEST(MetricsTest, WarningIsARecordToo) {
  EXPECT_EQ(FormatWarningRecord(3, "the \"disk\""), R"({"step": 3, "warning": "the \"disk\""})");
}

class MetricsLogTest : public testing::Test {
 protected:
  ~MetricsLogTest() override { RemoveFolder(folder_); }
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
  EXPECT_EQ(ReadAll(path_ + ".1.1"), FormatEvalRecord(1, 0) + "\n");
}

std::vector<std::string> RunsIn(const std::string& path) {
  std::vector<std::string> runs;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line);
    runs.push_back(record.at("run").get<std::string>() + " " +
                   std::to_string(record.at("generation").get<uint64_t>()) + " " +
                   record.at("launch").get<std::string>() + " " +
                   std::to_string(record.at("step").get<int64_t>()));
  }
  return runs;
}

TEST_F(MetricsLogTest, RecordsTellWhoWroteThem) {
  MetricsLog(path_, 0, {"r", "job \"1\"", 2}).Append(FormatEvalRecord(1, 1));
  EXPECT_EQ(RunsIn(path_), std::vector<std::string>{"r 2 job \"1\" 1"});
}

TEST_F(MetricsLogTest, ResumingKeepsTheRecordsOfAnotherRun) {
  {
    MetricsLog log(path_, 0, {"other", "a", 1});
    for (int step = 1; step <= 4; ++step) {
      log.Append(FormatEvalRecord(step, step));
    }
  }
  const std::string others = ReadAll(path_);
  MetricsLog(path_, 2, {"mine", "b", 1}).Append(FormatEvalRecord(3, 30));
  EXPECT_EQ(ReadAll(path_ + ".1"), others);
  EXPECT_EQ(RunsIn(path_), std::vector<std::string>{"mine 1 b 3"});
  MetricsLog(path_, 3, {"mine", "b", 2}).Append(FormatEvalRecord(4, 40));
  EXPECT_EQ(RunsIn(path_), (std::vector<std::string>{"mine 1 b 3", "mine 2 b 4"}));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".2"));
}

/// Whether it was refused.
bool IsRefused(MetricsLog& log) {
  try {
    log.Append(FormatEvalRecord(9, 9));
    return false;
  } catch (const MetricsReplacedError&) {
    return true;
  }
}

TEST_F(MetricsLogTest, ProcessThatWasReplacedWritesNothingInItsSuccessorsFile) {
  int told[2];
  int asked[2];
  ASSERT_EQ(pipe(told) + pipe(asked), 0);
  const pid_t old_world = fork();
  if (old_world == 0) {
    MetricsLog log(path_, 0, {"r", "job", 1});
    for (int step = 1; step <= 4; ++step) {
      log.Append(FormatEvalRecord(step, step));
    }
    char byte = 0;
    const bool is_told = write(told[1], "x", 1) == 1 && read(asked[0], &byte, 1) == 1;
    _exit(is_told && IsRefused(log) && IsRefused(log) ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  MetricsLog log(path_, 2, {"r", "job", 2});
  log.Append(FormatEvalRecord(3, 3));
  ASSERT_EQ(write(asked[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(old_world, &status, 0), old_world);
  EXPECT_EQ(status, 0);
  log.Append(FormatEvalRecord(4, 4));
  EXPECT_EQ(RunsIn(path_),
            (std::vector<std::string>{"r 1 job 1", "r 1 job 2", "r 2 job 3", "r 2 job 4"}));
  for (const int fd : {told[0], told[1], asked[0], asked[1]}) {
    close(fd);
  }
}

TEST_F(MetricsLogTest, FileThatTheUserRemovesIsMadeAnewAndOneThatIsRenamedGoesOn) {
  MetricsLog log(path_, 0);
  log.Append(FormatEvalRecord(1, 1));
  std::filesystem::remove(path_);
  log.Append(FormatEvalRecord(2, 2));
  EXPECT_EQ(ReadAll(path_), FormatEvalRecord(2, 2) + "\n");
  std::filesystem::rename(path_, path_ + ".rotated");
  log.Append(FormatEvalRecord(3, 3));
  EXPECT_EQ(ReadAll(path_ + ".rotated"),
            FormatEvalRecord(2, 2) + "\n" + FormatEvalRecord(3, 3) + "\n");
}

/// Calls `write`, whose file must not become larger than `bytes`.
void WithFilesOfAtMost(rlim_t bytes, const std::function<void()>& write) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = bytes;
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  write();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, ignored);
}

TEST_F(MetricsLogTest, AppendThatFailsLeavesWholeRecordsAndTheNextSucceeds) {
  MetricsLog log(path_, 0);
  log.Append(FormatEvalRecord(1, 1));
  WithFilesOfAtMost(FormatEvalRecord(1, 1).size() + 5,
                    [&] { EXPECT_THROW(log.Append(FormatEvalRecord(2, 2)), MetricsError); });
  log.Append(FormatEvalRecord(3, 3));
  EXPECT_EQ(ReadAll(path_), FormatEvalRecord(1, 1) + "\n" + FormatEvalRecord(3, 3) + "\n");
}

class LateMetricsLogTest : public MetricsLogTest {
 protected:
  /// Leaves records of steps 1 and 2, and lets `log`, which continues them, fail to open its file.
  void FailToOpen(MetricsLog& log) {
    MetricsLog earlier(path_, 0, {"r", "job", 1});
    earlier.Append(FormatEvalRecord(1, 1));
    earlier.Append(FormatEvalRecord(2, 2));
    const std::string before = ReadAll(path_);
    WithFilesOfAtMost(10, [&] {
      EXPECT_THROW(log.Open(), MetricsError);
      EXPECT_THROW(log.Append(FormatEvalRecord(2, 2)), MetricsError);
    });
    EXPECT_EQ(ReadAll(path_), before);
  }
  MetricsLog log_{MetricsLog::Later{}, path_, 1, {"r", "job", 2}};
};

TEST_F(LateMetricsLogTest, OpeningThatFailsChangesNothingAndTheNextRecordTriesAgain) {
  FailToOpen(log_);
  log_.Append(FormatEvalRecord(3, 3));
  EXPECT_EQ(RunsIn(path_), (std::vector<std::string>{"r 1 job 1", "r 2 job 3"}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/deep"), {}), 1);
}

TEST_F(LateMetricsLogTest, SuccessorsFileIsLeftAlone) {
  FailToOpen(log_);
  MetricsLog successor(path_, 2, {"r", "job", 3});
  EXPECT_TRUE(IsRefused(log_));
  successor.Append(FormatEvalRecord(3, 3));
  EXPECT_EQ(RunsIn(path_), (std::vector<std::string>{"r 1 job 1", "r 1 job 2", "r 3 job 3"}));
}

TEST(MetricsTest, NewerGenerationOfTheLaunchIsASuccessorAndNobodyElse) {
  const auto content = [](const std::string& launch, int generation) {
    return R"({"step": 1, "eval_loss": 1, "run": "r", "launch": ")" + launch +
           R"(", "generation": )" + std::to_string(generation) + "}\n";
  };
  const std::string both = content("job", 1) + content("job", 3);
  EXPECT_TRUE(IsOfSuccessor(both, "job", 2));
  EXPECT_FALSE(IsOfSuccessor(both, "job", 3));
  EXPECT_FALSE(IsOfSuccessor(both, "another", 2));
  EXPECT_FALSE(IsOfSuccessor(content("", 3), "", 2));
  EXPECT_FALSE(IsOfSuccessor("", "job", 0));
  EXPECT_FALSE(IsOfSuccessor("{\"step\": 1, \"generation\": -1, \"launch\": 7}\nno\n", "job", 0));
}

// It had asked before, and was stopped since.
TEST_F(MetricsLogTest, WhoHearsAtTheLastMomentThatItWasReplacedChangesNothing) {
  MetricsLog(path_, 0).Append(FormatEvalRecord(1, 1));
  const std::string before = ReadAll(path_);
  MetricsLog log(MetricsLog::Later{}, path_, 0, {});
  EXPECT_THROW(log.Open([] { return true; }), MetricsReplacedError);
  EXPECT_FALSE(log.is_open());
  EXPECT_EQ(ReadAll(path_), before);
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(MetricsLogTest, StartThatWasReplacedBeforeItHasOpenedTheFileLeavesItAlone) {
  MetricsLog(path_, 0, {"r", "job", 2}).Append(FormatEvalRecord(1, 1));
  const std::string before = ReadAll(path_);
  MetricsLog late(MetricsLog::Later{}, path_, 0, {"r", "job", 1});
  EXPECT_TRUE(IsRefused(late));
  EXPECT_TRUE(IsRefused(late));
  EXPECT_EQ(ReadAll(path_), before);
  MetricsLog(path_, 1, {"r", "job", 3}).Append(FormatEvalRecord(2, 2));
  EXPECT_EQ(RunsIn(path_), (std::vector<std::string>{"r 2 job 1", "r 3 job 2"}));
}

TEST_F(LateMetricsLogTest, FileThatIsMovedAwayMeanwhileIsMadeAnew) {
  FailToOpen(log_);
  std::filesystem::rename(path_, path_ + ".rotated");
  log_.Append(FormatEvalRecord(3, 3));
  EXPECT_EQ(RunsIn(path_), std::vector<std::string>{"r 2 job 3"});
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
