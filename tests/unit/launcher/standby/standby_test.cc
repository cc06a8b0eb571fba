#include "launcher/standby/standby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "agent/process/orphans.h"
#include "base/log.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/launcher/journal/record_sample.h"

namespace fsdprun {
namespace {

std::string* logged = nullptr;

/// A program in the place of fsdprun, which notes its process id.
class StandbyTest : public ::testing::Test {
 protected:
  StandbyTest() {
    std::string name = "/tmp/fsdprun_standby_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    logged = &log_;
    SetLogSink(
        [](LogLevel, absl::string_view line) { logged->append(std::string(line)).append("\n"); });
  }
  ~StandbyTest() override {
    SetLogSink(nullptr);
    RemoveFolder(folder_);
  }

  std::unique_ptr<Standby> Make(const std::string& body) {
    const std::string path = folder_ + "/program";
    std::ofstream(path) << "#!/bin/bash\n" << body << "\n";
    ::chmod(path.c_str(), 0700);
    return std::make_unique<Standby>(loop_, Standby::Options{.path = path,
                                                             .command = {path, "--nnodes=2"},
                                                             .handover = {.run_id = "a"},
                                                             .job = SampleJob()});
  }
  std::string NoteOf(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::string text;
    std::getline(file, text);
    return text;
  }
  void RunFor(Duration time) {
    loop_.At(MonoNow() + time, [this] { loop_.Stop(); });
    loop_.Run();
  }
  /// Runs the loop until the program has noted something.
  std::string AwaitNote(const std::string& name) {
    const MonoTime end = MonoNow() + std::chrono::seconds(60);
    while (NoteOf(name).empty() && MonoNow() < end) {
      RunFor(std::chrono::milliseconds(5));
    }
    return NoteOf(name);
  }

  EventLoop loop_;
  std::string folder_;
  std::string log_;
};

TEST_F(StandbyTest, IsStartedWithTheFirstRecordAndEndedAtTheEnd) {
  auto standby = Make("echo \"$*\" > ${0%/*}/words; echo $$ > ${0%/*}/pid; cat <&3 > /dev/null");
  RunFor(std::chrono::milliseconds(20));
  EXPECT_EQ(NoteOf("pid"), "");
  standby->Keep(SampleRecord());
  const pid_t pid = std::stoi(AwaitNote("pid"));
  EXPECT_EQ(NoteOf("words"), "--standby --nnodes=2");
  EXPECT_EQ(::kill(pid, 0), 0);
  standby.reset();
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(log_, "");
}

TEST_F(StandbyTest, OneThatEndsIsReplacedAndThatIsSaidOnce) {
  auto standby = Make("echo x >> ${0%/*}/starts; exit 1");
  standby->Keep(SampleRecord());
  const MonoTime end = MonoNow() + std::chrono::seconds(60);
  const auto starts = [this] {
    std::ifstream file(folder_ + "/starts");
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  while (starts().size() < 6 && MonoNow() < end) {
    RunFor(std::chrono::milliseconds(5));
    standby->Keep(SampleRecord());  // Starts none before its time.
  }
  EXPECT_EQ(starts().substr(0, 6), "x\nx\nx\n");
  EXPECT_THAT(log_, ::testing::MatchesRegex("[^\n]* has ended; another one is started\n"));
}

TEST_F(StandbyTest, SweepOfWorkersLeavesItAlone) {
  auto standby = Make("echo $$ > ${0%/*}/pid; cat <&3 > /dev/null");
  standby->Keep(SampleRecord());
  const pid_t pid = std::stoi(AwaitNote("pid"));
  EXPECT_EQ(KillOrphans({}), 0);
  RunFor(std::chrono::milliseconds(20));
  EXPECT_EQ(::kill(pid, 0), 0);
  EXPECT_EQ(log_, "");
}

TEST(RestartPauseTest, IsLongerEachTimeAndNeverEnds) {
  RestartPause pause;
  Duration expected = RestartPause::kFirst;
  int told = 0;
  for (int i = 0; i < 100; ++i) {
    const RestartPause::Next next = pause.Lost(std::chrono::seconds(1));
    EXPECT_EQ(next.pause, expected);
    EXPECT_EQ(next.is_first, i == 0);
    told += next.is_persistent ? 1 : 0;
    expected = std::min(2 * expected, RestartPause::kLongest);
  }
  EXPECT_EQ(told, 1);
}

TEST(RestartPauseTest, BeginsAnewAfterOneThatHasLived) {
  RestartPause pause;
  pause.Lost({});
  pause.Lost({});
  const RestartPause::Next next = pause.Lost(RestartPause::kLongLife);
  EXPECT_EQ(next.pause, RestartPause::kFirst);
  EXPECT_TRUE(next.is_first);
}

TEST_F(StandbyTest, ProgramThatCannotBeStartedIsNamed) {
  Standby standby(loop_,
                  {.path = "/no/such", .command = {"fsdprun"}, .handover = {}, .job = SampleJob()});
  standby.Keep(SampleRecord());
  EXPECT_EQ(
      log_,
      "fsdprun WARNING the standby of this launcher's coordinator: start /no/such: No such file or "
      "directory; another one is started\n");
}

}  // namespace
}  // namespace fsdprun
