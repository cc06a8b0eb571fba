#include "launcher/chaos/run/injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "tests/unit/base/loop_waiter.h"

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

/// Of this process, with names or without.
int OpenFilesIn(const std::filesystem::path& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    count += target.rfind(folder.string() + "/", 0) == 0 ? 1 : 0;
  }
  return count;
}

class InjectorTest : public ::testing::Test {
 protected:
  Injector::Options Options() {
    return {.find = [this] { return processes_; },
            .on_killed = [this](int64_t pid) { killed_.push_back(pid); }};
  }

  /// Waits until it is known what came of it.
  absl::StatusOr<Injector::Done> Begin(Injector& injector, size_t index,
                                       const PlannedFault& fault) {
    std::optional<absl::StatusOr<Injector::Done>> result;
    injector.Begin(index, fault, [&](absl::StatusOr<Injector::Done> done) {
      result = std::move(done);
      waiter_.Notice();
    });
    EXPECT_TRUE(waiter_.RunUntil([&] { return result.has_value(); }));
    return result.value_or(absl::UnknownError("nothing came of it"));
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::vector<JobProcess> processes_;
  std::vector<int64_t> killed_;
};

TEST_F(InjectorTest, AnotherProcessThatHasGotThePidIsLeftAlone) {
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  --processes_[0].start_ticks;
  Injector injector(loop_, Options());
  const auto done = Begin(injector, 0, {.kind = FaultKind::kKill, .target = FaultTarget::kWorker});
  EXPECT_THAT(std::string(done.status().message()), HasSubstr("has just ended"));
  EXPECT_TRUE(victim.Lives());
  EXPECT_THAT(killed_, ElementsAre());
}

TEST_F(InjectorTest, NobodyToMeetIsSaid) {
  Injector injector(loop_, Options());
  EXPECT_EQ(Begin(injector, 0, {.kind = FaultKind::kKill, .target = FaultTarget::kKeeper})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(
      Begin(injector, 0, {.kind = FaultKind::kPartition, .target = FaultTarget::kAgent}).ok());
}

TEST_F(InjectorTest, AKillSaysWhatIsToFollow) {
  const Victim worker;
  const Victim coordinator;
  processes_ = {worker.As(FaultTarget::kWorker), coordinator.As(FaultTarget::kCoordinator)};
  Injector injector(loop_, Options());
  auto done = Begin(injector, 0, {.kind = FaultKind::kKill, .target = FaultTarget::kWorker});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(WIFSIGNALED(worker.NextChange()));
  EXPECT_TRUE(done->expects.new_world);
  EXPECT_FALSE(done->expects.new_coordinator);
  done = Begin(injector, 1, {.kind = FaultKind::kKill, .target = FaultTarget::kCoordinator});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_FALSE(done->expects.new_world);
  EXPECT_TRUE(done->expects.new_coordinator);
  EXPECT_THAT(killed_, ElementsAre(processes_[0].pid, processes_[1].pid));
}

TEST_F(InjectorTest, ASessionOfADaemonMayBeAdopted) {
  const Victim session;
  processes_ = {session.As(FaultTarget::kAgent)};
  processes_[0].is_session = true;
  Injector injector(loop_, Options());
  const auto done = Begin(injector, 0, {.kind = FaultKind::kKill, .target = FaultTarget::kAgent});
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
  Injector injector(loop_, options);
  const PlannedFault corrupt{.kind = FaultKind::kCorrupt};
  auto done = Begin(injector, 0, corrupt);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->what, HasSubstr("step-3 and kill worker 0"));
  EXPECT_TRUE(WIFSIGNALED(victim.NextChange()));
  done = Begin(injector, 1, corrupt);
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
  Injector injector(loop_, options);
  EXPECT_THAT(std::string(Begin(injector, 0, {.kind = FaultKind::kFill}).status().message()),
              HasSubstr("nothing can be taken"));
}

// A file system may take long, and links, timers and signals must not wait for it.
TEST_F(InjectorTest, AFillIsDoneOnAThreadAndCanBeGivenUp) {
  Injector::Options options = Options();
  options.fill = ::testing::TempDir();
  options.fill_leave = INT64_MAX / 2;
  Injector injector(loop_, options);
  bool is_answered = false;
  const auto then = [&](const absl::StatusOr<Injector::Done>&) { is_answered = true; };
  injector.Begin(0, {.kind = FaultKind::kFill}, then);
  EXPECT_FALSE(is_answered) << "only the loop tells";
  injector.GiveUpBeginnings();
  EXPECT_FALSE(Begin(injector, 1, {.kind = FaultKind::kFill}).ok()) << "after the first one";
  EXPECT_FALSE(is_answered);
}

TEST_F(InjectorTest, WhatWasFilledIsGivenBackWhenThatIsLifted) {
  constexpr int64_t kTaken = 64 << 20;
  const std::filesystem::path folder =
      std::filesystem::canonical(::testing::TempDir()) / absl::StrCat("filled_", ::getpid());
  std::filesystem::create_directories(folder);
  Injector::Options options = Options();
  options.fill = folder.string();
  absl::StatusOr<Injector::Done> done = absl::UnknownError("");
  // Others may take room meanwhile: then it is tried again.
  for (int i = 0; i < 100 && !done.ok(); ++i) {
    const std::filesystem::space_info space = std::filesystem::space(folder);
    const auto room = static_cast<int64_t>(::geteuid() == 0 ? space.free : space.available);
    options.fill_leave = std::max<int64_t>(0, room - kTaken);
    Injector injector(loop_, options);
    done = Begin(injector, 0, {.kind = FaultKind::kFill});
    EXPECT_EQ(OpenFilesIn(folder), done.ok() ? 1 : 0);
    injector.Lift(0);
    std::filesystem::remove_all(folder);
    EXPECT_FALSE(Begin(injector, 1, {.kind = FaultKind::kFill}).ok()) << "after all before";
    EXPECT_EQ(OpenFilesIn(folder), 0);
    std::filesystem::create_directories(folder);
  }
  EXPECT_TRUE(done.ok()) << done.status();
  std::filesystem::remove_all(folder);
}

TEST_F(InjectorTest, NobodyIsKilledForADamageThatWasGivenUp) {
  const std::filesystem::path folder = absl::StrCat(::testing::TempDir(), "injector_", ::getpid());
  std::filesystem::create_directories(folder);
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  Injector::Options options = Options();
  options.corrupt = folder.string();
  Injector injector(loop_, options);
  for (const char* name : {"step-1", "step-2", "step-3"}) {
    std::ofstream(folder / name) << std::string(5000, 'x');
  }
  injector.Begin(0, {.kind = FaultKind::kCorrupt},
                 [](const absl::StatusOr<Injector::Done>&) { ADD_FAILURE(); });
  injector.Lift(0);
  processes_.clear();
  EXPECT_FALSE(Begin(injector, 1, {.kind = FaultKind::kCorrupt}).ok());
  EXPECT_FALSE(Begin(injector, 2, {.kind = FaultKind::kFill}).ok()) << "after all before";
  EXPECT_TRUE(victim.Lives());
  EXPECT_THAT(killed_, ElementsAre());
  std::filesystem::remove_all(folder);
}

TEST_F(InjectorTest, WhoIsStoppedTwiceGoesOnWhenBothAreOver) {
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kAgent)};
  const PlannedFault stop{.kind = FaultKind::kStop, .target = FaultTarget::kAgent};
  Injector injector(loop_, Options());
  ASSERT_TRUE(Begin(injector, 0, stop).ok());
  EXPECT_TRUE(WIFSTOPPED(victim.NextChange()));
  ASSERT_TRUE(Begin(injector, 1, stop).ok());
  injector.Lift(0);
  EXPECT_EQ(victim.State(), 'T');
  injector.Lift(1);
  EXPECT_TRUE(WIFCONTINUED(victim.NextChange()));
}

TEST_F(InjectorTest, ItsEndLiftsWhatIsLeft) {
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  {
    Injector injector(loop_, Options());
    ASSERT_TRUE(
        Begin(injector, 0, {.kind = FaultKind::kStop, .target = FaultTarget::kWorker}).ok());
    EXPECT_TRUE(WIFSTOPPED(victim.NextChange()));
  }
  EXPECT_TRUE(WIFCONTINUED(victim.NextChange()));
}

}  // namespace
}  // namespace fsdprun::chaos
