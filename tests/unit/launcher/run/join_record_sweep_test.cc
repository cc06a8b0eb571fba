#include "launcher/run/join_record_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "agent/local/file_thread.h"
#include "launcher/directory/join_record_file.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// A folder with records of jobs 11, 12 and 13, of which 12 is the launcher's, and a program in
/// place of squeue.
class JoinRecordSweepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/sweep_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    environment_ = {{"XDG_CONFIG_HOME", folder_},
                    {"PATH", folder_ + ":/usr/bin:/bin"},
                    {"SQUEUE_STATES", "PENDING"},
                    {"SLURM_CLUSTERS", "another"}};
    for (const char* job : {"11", "12", "13"}) {
      records_.push_back(JoinRecordFile::Write(environment_, Record(job)).value());
    }
  }
  void TearDown() override {
    records_.clear();
    RemoveFolder(folder_);
  }

  static SlurmJoinRecord Record(const std::string& job) {
    return {.job = job,
            .cluster = "test",
            .token = "secret",
            .coordinators = "10.0.0.1:4000",
            .command = {"fsdprun", "train.py"}};
  }
  static std::string Line(const std::string& job) {
    return absl::StrCat("printf '", job,
                        "\\tRUNNING\\tn\\tOK\\t1:00\\tN/A\\t\\tname\\t(null)\\n'\n");
  }
  void Begin() {
    sweep_ = std::make_unique<JoinRecordSweep>(loop_, *files_, environment_, Record("12"));
  }
  void Make(const std::string& squeue) const {
    const std::string path = folder_ + "/squeue";
    std::ofstream(path) << "#!/bin/sh\n[ -z \"$SQUEUE_STATES$SLURM_CLUSTERS\" ] || exit 9\n"
                        << squeue;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  /// Until what squeue says is done.
  void Sweep(const std::string& squeue) {
    Make(squeue);
    Begin();
    EXPECT_TRUE(waiter_.PollUntil([this] { return sweep_->is_done(); }));
  }
  std::vector<std::string> Jobs() { return RecordedJobs(environment_, "test"); }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::string folder_;
  Environment environment_;
  std::vector<std::unique_ptr<JoinRecordFile>> records_;
  std::unique_ptr<JoinRecordSweep> sweep_;
  /// Ends before the sweep does.
  std::unique_ptr<FileThread> files_ = std::make_unique<FileThread>(loop_);
};

TEST_F(JoinRecordSweepTest, RecordsOfJobsThatAreOverGo) {
  Sweep(Line("12") + Line("13"));
  EXPECT_THAT(Jobs(), UnorderedElementsAre("12", "13"));
}

TEST_F(JoinRecordSweepTest, ControllerThatDoesNotAnswerCostsNoRecord) {
  Sweep("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n");
  EXPECT_THAT(Jobs(), UnorderedElementsAre("11", "12", "13"));
}

TEST_F(JoinRecordSweepTest, ListingThatLacksThisJobIsNotBelieved) {
  Sweep(Line("13"));
  EXPECT_THAT(Jobs(), UnorderedElementsAre("11", "12", "13"));
}

TEST_F(JoinRecordSweepTest, MachineWithoutSqueueCostsNoRecord) {
  environment_["PATH"] = folder_ + "/none";
  Sweep(Line("12"));
  EXPECT_THAT(Jobs(), UnorderedElementsAre("11", "12", "13"));
}

TEST_F(JoinRecordSweepTest, SqueueThatHangsEndsWithTheLauncher) {
  Make("echo $$ >$0.pid; exec tail -f /dev/null\n");
  Begin();
  pid_t squeue = 0;
  EXPECT_TRUE(waiter_.PollUntil(
      [&] { return static_cast<bool>(std::ifstream(folder_ + "/squeue.pid") >> squeue); }));
  files_.reset();
  sweep_.reset();
  ::waitpid(squeue, nullptr, 0);  // It may take a moment to die.
  EXPECT_NE(::kill(squeue, 0), 0);
}

TEST_F(JoinRecordSweepTest, NobodyIsAskedWhereThereIsNothingToRemove) {
  records_.clear();
  Begin();
  EXPECT_TRUE(waiter_.PollUntil([this] { return sweep_->is_done(); }));
}

}  // namespace
}  // namespace fsdprun
