#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "formats/checkpoint/claim.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun::checkpoint {
namespace {

using std::chrono::milliseconds;

/// Says when it was told to set a pulse; may hang, as a file system does whose server is gone.
class WatchedFileSystem : public FileSystem {
 public:
  explicit WatchedFileSystem(bool hangs) : hangs_(hangs) {}

  int SetPulse(const FileDescriptor& file, Pulse pulse) override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++count_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !hangs_; });
    return FileSystem::SetPulse(file, pulse);
  }
  void WaitForPulses(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }
  void GoOn() {
    const std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hangs_;
  int count_ = 0;
};

class ClaimPulseTest : public testing::Test {
 protected:
  static FileDescriptor Claimed(const std::string& path, const Claim& claim) {
    std::ofstream(path + ".new") << EncodeClaim(claim);
    std::filesystem::rename(path + ".new", path);
    return FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  }
  FileDescriptor Claimed(const Claim& claim) const { return Claimed(dir_ / ".claim", claim); }
  int64_t PulseNow() const { return LookAtClaim(dir_.path())->pulse; }
  void SetTime(int64_t second) const {
    const timespec times[2] = {{0, UTIME_OMIT}, {second, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (dir_ / ".claim").c_str(), times, 0), 0);
  }

  const TemporaryDirectory dir_;
};

TEST_F(ClaimPulseTest, BeatsUntilItIsReleased) {
  const auto file_system = std::make_shared<WatchedFileSystem>(false);
  FileDescriptor file = Claimed(MakeClaim("job", 1));
  SetTime(1000);
  ClaimPulse pulse(file_system, std::move(file), milliseconds(1));
  file_system->WaitForPulses(2);
  EXPECT_GT(PulseNow(), int64_t{1'000'000'000} * 1000);
  pulse.Release();
  EXPECT_EQ(PulseNow(), 0);
}

TEST_F(ClaimPulseTest, RestartKeepsTheClaimOfItsLaunchAlive) {
  const FileDescriptor file = Claimed(MakeClaim("job", 1, milliseconds(30)));
  SetTime(1000);
  EXPECT_FALSE(KeepClaim(dir_.path(), "another"));
  EXPECT_EQ(PulseNow(), int64_t{1'000'000'000} * 1000);
  std::unique_ptr<ClaimPulse> kept = KeepClaim(dir_.path(), "job");
  ASSERT_TRUE(kept);
  while (PulseNow() == int64_t{1'000'000'000} * 1000) {  // nothing tells of a beat
    std::this_thread::yield();
  }
  kept.reset();
  EXPECT_NE(PulseNow(), 0);  // others must not take it
  EXPECT_FALSE(KeepClaim(dir_ / "absent", "job"));
}

TEST_F(ClaimPulseTest, PulseOfAClaimThatWasTakenChangesNothing) {
  const auto file_system = std::make_shared<WatchedFileSystem>(false);
  std::optional<ClaimPulse> pulse;
  pulse.emplace(file_system, Claimed(MakeClaim("old", 1)), milliseconds(1));
  const FileDescriptor newer = Claimed(MakeClaim("new", 1));
  SetTime(1000);
  file_system->WaitForPulses(5);
  pulse->Release();
  EXPECT_EQ(PulseNow(), int64_t{1'000'000'000} * 1000);
  EXPECT_EQ(LookAtClaim(dir_.path())->claim.job_id, "new");
}

TEST_F(ClaimPulseTest, FileSystemThatHangsHoldsUpNobody) {
  const auto file_system = std::make_shared<WatchedFileSystem>(true);
  {
    ClaimPulse pulse(file_system, Claimed(MakeClaim("job", 1)), milliseconds(1), milliseconds(1));
    file_system->WaitForPulses(1);
    pulse.Release();
  }
  file_system->GoOn();
  file_system->WaitForPulses(2);  // the release, by the thread that was left behind
}

TEST_F(ClaimPulseTest, ClaimTellsItsProcessAndWhetherThatHasEnded) {
  const pid_t child = fork();
  if (child == 0) {
    Claim claim = MakeClaim("job", 3);
    claim.launcher_pid = claim.pid;  // ends as well
    Claimed(claim);
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const std::optional<ClaimSight> sight = LookAtClaim(dir_.path());
  EXPECT_EQ(sight->claim.pid, child);
  EXPECT_TRUE(sight->is_dead);
  EXPECT_NE(Describe(sight->claim)
                .find("job 'job', generation 3, process " + std::to_string(child) + " on host "),
            std::string::npos);
  const Claim mine = MakeClaim("job", 3);
  Claimed(mine);
  EXPECT_EQ(LookAtClaim(dir_.path())->claim, mine);
  EXPECT_FALSE(LookAtClaim(dir_.path())->is_dead);
  Claim launched = sight->claim;
  launched.launcher_pid = getpid();
  Claimed(launched);
  EXPECT_FALSE(LookAtClaim(dir_.path())->is_dead);
  Claim elsewhere = sight->claim;
  elsewhere.pid_space = "another machine";
  Claimed(elsewhere);
  EXPECT_FALSE(LookAtClaim(dir_.path())->is_dead);
}

TEST_F(ClaimPulseTest, ClaimOfAnOlderVersionIsWaitedFor) {
  std::ofstream(dir_ / ".claim") << R"({"job_id": "a", "generation": 1, "claim": "b"})";
  const std::optional<ClaimSight> sight = LookAtClaim(dir_.path());
  ASSERT_TRUE(sight);
  EXPECT_FALSE(sight->is_dead);
  EXPECT_NE(sight->pulse, 0);
}

}  // namespace
}  // namespace fsdprun::checkpoint
