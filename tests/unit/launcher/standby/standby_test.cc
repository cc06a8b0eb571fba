#include "launcher/standby/standby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/log.h"
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
    std::filesystem::remove_all(folder_);
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

TEST_F(StandbyTest, OneThatEndsIsReplacedSomeTimes) {
  auto standby = Make("echo x >> ${0%/*}/starts; exit 1");
  standby->Keep(SampleRecord());
  const MonoTime end = MonoNow() + std::chrono::seconds(60);
  while (log_.find("no other is started") == std::string::npos && MonoNow() < end) {
    RunFor(std::chrono::milliseconds(5));
  }
  std::ifstream file(folder_ + "/starts");
  const std::string starts((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(starts, "x\nx\nx\nx\nx\n");
  standby->Keep(SampleRecord());  // Which nobody hears.
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
