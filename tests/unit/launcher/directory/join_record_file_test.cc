#include "launcher/directory/join_record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class JoinRecordFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/join_record_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    environment_["XDG_CONFIG_HOME"] = folder_;
  }
  void TearDown() override { RemoveFolder(folder_); }

  std::unique_ptr<JoinRecordFile> Write(const std::string& job, const std::string& restarts = "",
                                        const std::string& cluster = "test") {
    return JoinRecordFile::Write(environment_, {.job = job,
                                                .cluster = cluster,
                                                .restarts = restarts,
                                                .token = "secret",
                                                .coordinators = "10.0.0.1:4000",
                                                .command = {"fsdprun", "train.py"}})
        .value();
  }
  std::vector<std::string> Jobs() { return RecordedJobs(environment_, "test"); }

  std::string folder_;
  Environment environment_;
};

TEST_F(JoinRecordFileTest, IsThereForAsLongAsItsLauncher) {
  std::unique_ptr<JoinRecordFile> file = Write("12");
  EXPECT_EQ(ReadJoinRecord(environment_, "12")->token, "secret");
  file.reset();
  EXPECT_THAT(std::string(ReadJoinRecord(environment_, "12").status().message()),
              HasSubstr("job 12 has left no record"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/fsdprun/slurm"));
}

TEST_F(JoinRecordFileTest, NextRunsRecordOutlivesTheOneBefore) {
  std::unique_ptr<JoinRecordFile> cut_off = Write("12");
  const std::unique_ptr<JoinRecordFile> next = Write("12", "1");
  cut_off.reset();
  EXPECT_EQ(ReadJoinRecord(environment_, "12")->restarts, "1");
}

// As where a network file system tells of a full quota: half of a token lets nobody join.
TEST_F(JoinRecordFileTest, FileThatWasNotClosedWellIsNoRecord) {
  bool is_filtered = false;
  absl::Status status;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_close, .error = EDQUOT});
    status = JoinRecordFile::Write(environment_, {.job = "12", .cluster = "test"}).status();
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  EXPECT_THAT(std::string(status.message()), HasSubstr("quota"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/fsdprun/slurm"));
}

// It has the secrets of a record, and its launcher was killed before it got its name.
TEST_F(JoinRecordFileTest, RecordThatWasNeverFinishedGoesInTime) {
  const std::filesystem::path folder = folder_ + "/fsdprun/slurm";
  const std::unique_ptr<JoinRecordFile> old = Write("12");
  const auto now = std::filesystem::file_time_type::clock::now();
  for (const char* name : {".0123456789abcdef", ".fedcba9876543210", ".nfs0123456789abc"}) {
    std::ofstream(folder / name) << "secret";
  }
  for (const char* name : {".fedcba9876543210", ".nfs0123456789abc", "test.12"}) {
    std::filesystem::last_write_time(folder / name, now - std::chrono::hours(2));
  }
  const std::unique_ptr<JoinRecordFile> next = Write("13");
  EXPECT_TRUE(std::filesystem::exists(folder / ".0123456789abcdef"));  // May be being written.
  EXPECT_FALSE(std::filesystem::exists(folder / ".fedcba9876543210"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".nfs0123456789abc"));  // A file server's own.
  EXPECT_THAT(Jobs(), UnorderedElementsAre("12", "13"));
}

TEST_F(JoinRecordFileTest, RecordUnderTheNameOfAnotherJobIsRefused) {
  const std::unique_ptr<JoinRecordFile> file = Write("12");
  const std::string folder = folder_ + "/fsdprun/slurm/";
  std::filesystem::rename(folder + "test.12", folder + "test.13");
  EXPECT_THAT(std::string(ReadJoinRecord(environment_, "13").status().message()),
              HasSubstr("it is that of job 12"));
}

TEST_F(JoinRecordFileTest, RecordsAreFoundByCluster) {
  EXPECT_THAT(Jobs(), ElementsAre());
  const auto one = Write("12"), member = Write("13_2"), elsewhere = Write("14", "", "test.b");
  std::ofstream(folder_ + "/fsdprun/slurm/test.notes") << "not ours";
  EXPECT_THAT(Jobs(), UnorderedElementsAre("12", "13_2"));
  RemoveJoinRecord(environment_, "test", "13_2");
  EXPECT_THAT(Jobs(), ElementsAre("12"));
}

TEST_F(JoinRecordFileTest, UserWithoutAFolderHasNone) {
  EXPECT_THAT(RecordedJobs({}, "test"), ElementsAre());
}

}  // namespace
}  // namespace fsdprun
