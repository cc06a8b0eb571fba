#include "launcher/run/own_join_record.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "agent/local/file_thread.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

/// Longer than any disk takes.
constexpr Duration kLongRemoval = std::chrono::seconds(60);

/// A folder on a file system that hangs until the test ends that.
class OwnJoinRecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/own_record_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    environment_ = {{"XDG_CONFIG_HOME", folder_}, {"PATH", folder_}};
  }
  void TearDown() override { RemoveFolder(folder_); }

  /// Whose end waits for so long at most.
  void Leave(Duration timeout) {
    auto files = std::make_unique<FileThread>(loop_);
    files->Run([answers = answers_.get_future().share()] { answers.wait(); }, [] {});
    record_ = std::make_unique<OwnJoinRecord>(loop_, environment_,
                                              SlurmJoinRecord{.job = "12",
                                                              .cluster = "test",
                                                              .token = "secret",
                                                              .coordinators = "10.0.0.1:4000",
                                                              .command = {"fsdprun", "train.py"}},
                                              std::move(files), timeout);
  }
  bool IsThere() const { return std::filesystem::exists(folder_ + "/fsdprun/slurm/test.12"); }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::string folder_;
  Environment environment_;
  std::promise<void> answers_;
  std::unique_ptr<OwnJoinRecord> record_;
};

TEST_F(OwnJoinRecordTest, IsWrittenWhenTheFileSystemAnswersAndGoesWithItsOwner) {
  Leave(kLongRemoval);
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_FALSE(IsThere());
  answers_.set_value();
  EXPECT_TRUE(waiter_.PollUntil([this] { return IsThere(); }));
  record_.reset();
  EXPECT_FALSE(IsThere());
}

TEST_F(OwnJoinRecordTest, GoesWhileTheLoopRunsForOthers) {
  Leave(kLongRemoval);
  answers_.set_value();
  EXPECT_TRUE(waiter_.PollUntil([this] { return IsThere(); }));
  record_->Remove();
  EXPECT_TRUE(waiter_.PollUntil([this] { return !IsThere(); }));
}

TEST_F(OwnJoinRecordTest, EndDoesNotWaitForAFileSystemThatHangs) {
  Leave(std::chrono::milliseconds(10));
  record_->Remove();
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  record_.reset();
  EXPECT_FALSE(IsThere());
  answers_.set_value();
}

}  // namespace
}  // namespace fsdprun
