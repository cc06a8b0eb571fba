#include "launcher/chaos/run/injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"

namespace fsdprun::chaos {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A process that lives until it is killed.
class Victim {
 public:
  Victim() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) {
        ::pause();
      }
    }
    ReadProcess(pid_, info_);
  }
  ~Victim() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  JobProcess As(FaultTarget role) const {
    return {.role = role, .pid = pid_, .start_ticks = info_.start_time_ticks, .number = 0};
  }
  /// Waits until it is stopped, goes on or has been killed.
  int NextChange() const {
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED | WCONTINUED);
    return status;
  }
  bool Lives() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  char State() const {
    ProcessInfo info;
    return ReadProcess(pid_, info) ? info.state : 'X';
  }

 private:
  const pid_t pid_;
  ProcessInfo info_;
};

class InjectorTest : public ::testing::Test {
 protected:
  Injector::Options Options() {
    return {.find = [this] { return processes_; },
            .on_killed = [this](int64_t pid) { killed_.push_back(pid); }};
  }

  std::vector<JobProcess> processes_;
  std::vector<int64_t> killed_;
};

TEST_F(InjectorTest, AnotherProcessThatHasGotThePidIsLeftAlone) {
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  --processes_[0].start_ticks;
  Injector injector(Options());
  const auto done = injector.Begin(0, {.kind = FaultKind::kKill, .target = FaultTarget::kWorker});
  EXPECT_THAT(std::string(done.status().message()), HasSubstr("has just ended"));
  EXPECT_TRUE(victim.Lives());
  EXPECT_THAT(killed_, ElementsAre());
}

TEST_F(InjectorTest, NobodyToMeetIsSaid) {
  Injector injector(Options());
  EXPECT_EQ(
      injector.Begin(0, {.kind = FaultKind::kKill, .target = FaultTarget::kKeeper}).status().code(),
      absl::StatusCode::kNotFound);
  EXPECT_FALSE(
      injector.Begin(0, {.kind = FaultKind::kPartition, .target = FaultTarget::kAgent}).ok());
}

TEST_F(InjectorTest, AKillSaysWhatIsToFollow) {
  const Victim worker;
  const Victim coordinator;
  processes_ = {worker.As(FaultTarget::kWorker), coordinator.As(FaultTarget::kCoordinator)};
  Injector injector(Options());
  auto done = injector.Begin(0, {.kind = FaultKind::kKill, .target = FaultTarget::kWorker});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(WIFSIGNALED(worker.NextChange()));
  EXPECT_TRUE(done->expects.new_world);
  EXPECT_FALSE(done->expects.new_coordinator);
  done = injector.Begin(1, {.kind = FaultKind::kKill, .target = FaultTarget::kCoordinator});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_FALSE(done->expects.new_world);
  EXPECT_TRUE(done->expects.new_coordinator);
  EXPECT_THAT(killed_, ElementsAre(processes_[0].pid, processes_[1].pid));
}

TEST_F(InjectorTest, ASessionOfADaemonMayBeAdopted) {
  const Victim session;
  processes_ = {session.As(FaultTarget::kAgent)};
  processes_[0].is_session = true;
  Injector injector(Options());
  const auto done = injector.Begin(0, {.kind = FaultKind::kKill, .target = FaultTarget::kAgent});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_FALSE(done->expects.new_world);
  EXPECT_FALSE(done->expects.new_coordinator);
}

TEST_F(InjectorTest, WhatIsDamagedIsNamedAlsoIfTheVictimHasEnded) {
  const std::filesystem::path folder = absl::StrCat(::testing::TempDir(), "injector_", ::getpid());
  std::filesystem::create_directories(folder);
  for (const char* name : {"step-1", "step-2", "step-3"}) {
    std::ofstream(folder / name) << std::string(5000, 'x');
  }
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  Injector::Options options = Options();
  options.corrupt = folder.string();
  Injector injector(options);
  const PlannedFault corrupt{.kind = FaultKind::kCorrupt};
  auto done = injector.Begin(0, corrupt);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->what, HasSubstr("step-3 and kill worker 0"));
  EXPECT_TRUE(WIFSIGNALED(victim.NextChange()));
  done = injector.Begin(1, corrupt);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->what, AllOf(HasSubstr("step-2; worker 0"), HasSubstr("ended by itself")));
  EXPECT_TRUE(done->expects.new_world);
  EXPECT_THAT(killed_, ElementsAre(processes_[0].pid));
  std::filesystem::remove_all(folder);
}

TEST_F(InjectorTest, AFillThatTakesNothingIsNotDone) {
  Injector::Options options = Options();
  options.fill = ::testing::TempDir();
  options.fill_leave = INT64_MAX / 2;
  Injector injector(options);
  EXPECT_THAT(std::string(injector.Begin(0, {.kind = FaultKind::kFill}).status().message()),
              HasSubstr("nothing can be taken"));
}

TEST_F(InjectorTest, WhoIsStoppedTwiceGoesOnWhenBothAreOver) {
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kAgent)};
  const PlannedFault stop{.kind = FaultKind::kStop, .target = FaultTarget::kAgent};
  Injector injector(Options());
  ASSERT_TRUE(injector.Begin(0, stop).ok());
  EXPECT_TRUE(WIFSTOPPED(victim.NextChange()));
  ASSERT_TRUE(injector.Begin(1, stop).ok());
  injector.Lift(0);
  EXPECT_EQ(victim.State(), 'T');
  injector.Lift(1);
  EXPECT_TRUE(WIFCONTINUED(victim.NextChange()));
}

TEST_F(InjectorTest, ItsEndLiftsWhatIsLeft) {
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  {
    Injector injector(Options());
    ASSERT_TRUE(injector.Begin(0, {.kind = FaultKind::kStop, .target = FaultTarget::kWorker}).ok());
    EXPECT_TRUE(WIFSTOPPED(victim.NextChange()));
  }
  EXPECT_TRUE(WIFCONTINUED(victim.NextChange()));
}

}  // namespace
}  // namespace fsdprun::chaos
