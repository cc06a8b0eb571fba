#include "launcher/chaos/run/injector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

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
            .on_killed = [this](int64_t pid) { killed_.push_back(pid); },
            .on_late =
                [this](size_t index, const std::string& what) {
                  late_.push_back(absl::StrCat(index, " ", what));
                  waiter_.Notice();
                }};
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
  std::vector<std::string> late_;
};

/// Three checkpoints.
class Checkpoints {
 public:
  Checkpoints() : folder_(absl::StrCat(::testing::TempDir(), "injector_", ::getpid())) {
    std::filesystem::create_directories(folder_);
    for (const char* name : {"step-1", "step-2", "step-3"}) {
      std::ofstream(folder_ / name) << sound_;
    }
  }
  ~Checkpoints() { RemoveFolder(folder_); }

  std::string folder() const { return folder_.string(); }
  /// Of the newest.
  bool IsSound() const {
    std::ifstream file(folder_ / "step-3");
    return std::string(std::istreambuf_iterator<char>(file), {}) == sound_;
  }

 private:
  const std::filesystem::path folder_;
  const std::string sound_ = std::string(5000, 'x');
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
  const Checkpoints checkpoints;
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  Injector::Options options = Options();
  options.corrupt = checkpoints.folder();
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
}

// Nobody has read it yet: this world goes on without.
TEST_F(InjectorTest, WhatIsDamagedIsForTheNextWorldAlsoIfThereIsNoVictim) {
  const Checkpoints checkpoints;
  const Victim victim;
  Injector::Options options = Options();
  options.corrupt = checkpoints.folder();
  processes_ = {victim.As(FaultTarget::kWorker)};
  options.find = [this] { return std::exchange(processes_, {}); };
  Injector injector(loop_, options);
  const auto done = Begin(injector, 0, {.kind = FaultKind::kCorrupt});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->what, HasSubstr("no such worker"));
  EXPECT_FALSE(checkpoints.IsSound());
  EXPECT_TRUE(done->expects.new_world);
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
  RemoveFolder(folder);
}

// Given up before its thread has come to it, or after.
TEST_F(InjectorTest, NobodyIsKilledForADamageThatWasGivenUpAndOneThatWasDoneIsTold) {
  const Checkpoints checkpoints;
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  Injector::Options options = Options();
  options.corrupt = checkpoints.folder();
  Injector injector(loop_, options);
  injector.Begin(7, {.kind = FaultKind::kCorrupt},
                 [](const absl::StatusOr<Injector::Done>&) { ADD_FAILURE(); });
  injector.Lift(7);
  injector.Settle(MonoNow() + std::chrono::seconds(60));
  EXPECT_EQ(late_.size(), checkpoints.IsSound() ? 0u : 1u);
  EXPECT_TRUE(victim.Lives());
  EXPECT_THAT(killed_, ElementsAre());
}

TEST_F(InjectorTest, ADamageThatWasDoneWhenItWasGivenUpIsTold) {
  const Checkpoints checkpoints;
  const Victim victim;
  processes_ = {victim.As(FaultTarget::kWorker)};
  Injector::Options options = Options();
  options.corrupt = checkpoints.folder();
  Injector injector(loop_, options);
  injector.Begin(7, {.kind = FaultKind::kCorrupt},
                 [](const absl::StatusOr<Injector::Done>&) { ADD_FAILURE(); });
  const MonoTime end = MonoNow() + std::chrono::seconds(60);
  while (checkpoints.IsSound() && MonoNow() < end) {
  }  // The loop does not run, so nobody has heard of it.
  injector.GiveUpBeginnings();
  EXPECT_TRUE(waiter_.RunUntil([this] { return !late_.empty(); }));
  EXPECT_THAT(late_, ElementsAre(AllOf(HasSubstr("7 "), HasSubstr("step-3 was damaged"))));
  EXPECT_TRUE(victim.Lives());
  EXPECT_THAT(killed_, ElementsAre());
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
