#include "launcher/run/slurm_launcher.h"

#include <gmock/gmock.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <future>
#include <thread>

#include "tests/unit/launcher/run/slurm_queue_case.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

/// Far longer than a program takes to be called.
constexpr Duration kPatience = std::chrono::seconds(20);
/// Longer than that.
constexpr Duration kLongWait = std::chrono::seconds(60);

/// The shell of a job of two nodes. Its srun cannot reach the controller as long as there is
/// `away`; else it begins, and does nothing.
class SlurmLauncherTest : public SlurmQueueCase {
 protected:
  static constexpr char kSrun[] = R"sh(#!/bin/sh
d=$(dirname "$0")
if [ -e $d/away ]; then
  echo "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)" >&2
  echo failed >>$d/sruns
  exit 1
fi
touch $d/begun
exec tail -f /dev/null
)sh";

  SlurmLauncherTest() {
    Write("srun", kSrun);
    std::filesystem::permissions(folder_ / "srun", std::filesystem::perms::owner_all);
    plan_.backend = RendezvousBackend::kC10d;
    plan_.program = {"train.py"};
    plan_.rdzv_id = "slurm-7";
    plan_.max_nodes = 2;  // Of one at least: it takes nodes, and leaves a record for them.
    plan_.signals = {SIGTERM};
    Say("COMPLETING", 0);
    ::setenv("PATH", environment_["PATH"].c_str(), /*overwrite=*/1);  // srun is looked for there.
  }
  ~SlurmLauncherTest() override { ::setenv("PATH", path_.c_str(), /*overwrite=*/1); }

  /// The exit code of the launcher. `meanwhile` runs on another thread.
  int Run(const SlurmLauncher::Means& means, const std::function<void()>& meanwhile) {
    SlurmLauncher launcher(plan_, environment_, allocation_, {"fsdprun", "train.py"}, means);
    launcher_thread_ = ::pthread_self();
    testing::internal::CaptureStderr();
    const std::future<void> other = std::async(std::launch::async, meanwhile);
    const int code = launcher.Run();
    other.wait();
    said_ = testing::internal::GetCapturedStderr();
    return code;
  }

  // For the other thread.
  void Signal(int signal) const { ::pthread_kill(launcher_thread_, signal); }
  bool Is(const std::string& file) const { return std::filesystem::exists(folder_ / file); }
  /// False if it does not become so.
  static bool Await(const std::function<bool()>& is_so) {
    const MonoTime limit = MonoNow() + kPatience;
    while (!is_so() && MonoNow() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return is_so();
  }

  const std::string path_ = ::getenv("PATH");
  const SlurmAllocation allocation_{
      .job_id = 7, .cluster = "test", .groups = {{7, {"node-1", "node-2"}}}};
  pthread_t launcher_thread_{};
  std::string said_;
};

// The home directory hangs while the job ends: Slurm, which may end it any moment, comes first.
TEST_F(SlurmLauncherTest, NobodyWaitsForTheRemovalOfTheRecordBeforeSlurmIsAsked) {
  std::promise<void> answers;
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.record_timeout = kLongWait;
  means.record_files = [is_answered = answers.get_future().share()](EventLoop& loop) {
    auto files = std::make_unique<FileThread>(loop);
    files->Run([is_answered] { is_answered.wait(); }, [] {});
    return files;
  };
  bool was_asked = false;
  EXPECT_EQ(Run(means,
                [&] {
                  Await([this] { return Is("begun"); });
                  Signal(SIGTERM);
                  was_asked = Await([this] { return HasCalled(kShow); });
                  answers.set_value();
                }),
            1);
  EXPECT_TRUE(was_asked);
}

TEST_F(SlurmLauncherTest, StepIsTriedAgainWhileTheControllerDoesNotAnswer) {
  Write("away", "");
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.step_pause = std::chrono::milliseconds(10);
  bool has_begun = false;
  Run(means, [&] {
    Await([this] { return Is("sruns"); });
    std::filesystem::remove(folder_ / "away");
    has_begun = Await([this] { return Is("begun"); });
    Signal(SIGTERM);
  });
  EXPECT_TRUE(has_begun);
  EXPECT_THAT(said_, HasSubstr("srun could not start the step of 2 agents yet: Unable to confirm "
                               "allocation for job 7: Unable to contact slurm controller (connect "
                               "failure); trying again for 300 s"));
}

TEST_F(SlurmLauncherTest, ControllerThatStaysAwayEndsTheJob) {
  Write("away", "");
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.step_pause = std::chrono::milliseconds(10);
  means.step_patience = std::chrono::milliseconds(100);
  EXPECT_EQ(Run(means, [] {}), 1);
  EXPECT_THAT(said_, HasSubstr("srun could not start the step of 2 agents, and ended with code 1"));
  EXPECT_THAT(said_, HasSubstr("scontrol ping"));
}

TEST_F(SlurmLauncherTest, SignalEndsTheWaitForTheController) {
  Write("away", "");
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.step_pause = kLongWait;
  EXPECT_EQ(Run(means,
                [this] {
                  Await([this] { return Is("sruns"); });
                  Signal(SIGTERM);
                }),
            1);
  EXPECT_THAT(said_, HasSubstr("the job was ended by SIGTERM"));
}

}  // namespace
}  // namespace fsdprun
