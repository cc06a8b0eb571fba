#include "launcher/run/slurm_launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "base/unique_fd.h"
#include "tests/unit/launcher/run/slurm_queue_case.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

/// Far longer than a program takes to be called.
constexpr Duration kPatience = std::chrono::seconds(20);
/// Longer than that.
constexpr Duration kLongWait = std::chrono::seconds(60);

/// The shell of a job of two nodes. Its srun cannot reach the controller as long as there is
/// `away`, and is removed meanwhile if there is `moves`; else it begins, and does nothing.
class SlurmLauncherTest : public SlurmQueueCase {
 protected:
  static constexpr char kSrun[] = R"sh(#!/bin/sh
d=$(dirname "$0")
if [ -e $d/away ]; then
  echo "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)" >&2
  [ ! -e $d/moves ] || mv $d/srun $d/moved
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
    ::setenv("PATH", folder_.c_str(), /*overwrite=*/1);  // srun is looked for there.
  }
  ~SlurmLauncherTest() override { ::setenv("PATH", path_.c_str(), /*overwrite=*/1); }

  /// The exit code of the launcher. `meanwhile` runs on another thread.
  int Run(const SlurmLauncher::Means& means, const std::function<void()>& meanwhile) {
    const UniqueFd file(::open((folder_ / "said").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const UniqueFd before(::dup(STDERR_FILENO));
    ::dup2(file.get(), STDERR_FILENO);
    SlurmLauncher launcher(plan_, environment_, allocation_, {"fsdprun", "train.py"}, means);
    launcher_thread_ = ::pthread_self();
    const std::future<void> other = std::async(std::launch::async, meanwhile);
    const int code = launcher.Run();
    other.wait();
    ::dup2(before.get(), STDERR_FILENO);
    return code;
  }
  std::string Said() const {
    std::ifstream in(folder_ / "said");
    return {std::istreambuf_iterator<char>(in), {}};
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
  EXPECT_THAT(Said(), HasSubstr("srun could not start the step of 2 agents yet: Unable to confirm "
                                "allocation for job 7: Unable to contact slurm controller (connect "
                                "failure); trying again for 300 s"));
}

TEST_F(SlurmLauncherTest, ControllerThatStaysAwayEndsTheJob) {
  Write("away", "");
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.step_pause = std::chrono::milliseconds(10);
  means.step_patience = std::chrono::milliseconds(100);
  EXPECT_EQ(Run(means, [] {}), 1);
  EXPECT_THAT(Said(),
              HasSubstr("srun could not start the step of 2 agents, and ended with code 1"));
  EXPECT_THAT(Said(), HasSubstr("scontrol ping"));
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
  EXPECT_THAT(Said(), HasSubstr("the job was ended by SIGTERM"));
}

TEST_F(SlurmLauncherTest, SrunThatIsBeingReplacedIsTriedAgain) {
  Write("away", "");
  Write("moves", "");
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.step_pause = std::chrono::milliseconds(10);
  bool has_begun = false;
  Run(means, [&] {
    Await(
        [this] { return absl::StrContains(Said(), "cannot start srun: no such program on PATH"); });
    std::filesystem::remove(folder_ / "away");
    std::filesystem::rename(folder_ / "moved", folder_ / "srun");
    has_begun = Await([this] { return Is("begun"); });
    Signal(SIGTERM);
  });
  EXPECT_TRUE(has_begun);
  EXPECT_THAT(Said(), HasSubstr("yet: cannot start srun: no such program on PATH; trying again"));
}

TEST_F(SlurmLauncherTest, MachineWithoutSrunEndsTheJobAtOnce) {
  std::filesystem::remove(folder_ / "srun");
  EXPECT_EQ(Run(SlurmLauncher::UsualMeans(), [] {}), 1);
  EXPECT_THAT(Said(), HasSubstr("cannot start srun: no such program on PATH. In a job of Slurm"));
}

TEST_F(SlurmLauncherTest, SrunThatCannotBeOpenedDelaysNoEnd) {
  ::signal(SIGIO, SIG_IGN);
  // Whoever opens a file with a lease waits until that is given back.
  UniqueFd leased(::open((folder_ / "srun").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fcntl(leased.get(), F_SETLEASE, F_WRLCK), 0);
  SlurmLauncher::Means means = SlurmLauncher::UsualMeans();
  means.notice_interval = std::chrono::milliseconds(10);
  EXPECT_EQ(Run(means,
                [this] {
                  Await([this] { return absl::StrContains(Said(), "srun has not begun yet"); });
                  Signal(SIGTERM);
                }),
            1);
  EXPECT_THAT(Said(), HasSubstr("srun has not begun yet; see which folder on PATH"));
  EXPECT_THAT(Said(), HasSubstr("the job was ended by SIGTERM"));
  EXPECT_FALSE(Is("begun"));
}

}  // namespace
}  // namespace fsdprun
