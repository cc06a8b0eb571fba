#include "launcher/control/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JobFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/jobsXXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { RemoveFolder(folder_); }

  std::vector<std::string> Listed() const {
    std::vector<std::string> ids;
    for (const JobEntry& job : ListJobs(folder_)) {
      ids.push_back(job.run_id);
    }
    return ids;
  }
  bool IsEmptyFolder() const { return std::filesystem::is_empty(folder_); }

  std::string folder_;
};

TEST_F(JobFileTest, JobsAreListedWhileTheirFilesAreHeld) {
  const JobEntry second{
      .run_id = "second", .pid = 12, .node = "a", .endpoint = "a:1", .socket = "s", .began_ms = 2};
  absl::StatusOr<JobFile> file = JobFile::Create(folder_, second);
  ASSERT_TRUE(file.ok()) << file.status();
  {
    const absl::StatusOr<JobFile> first =
        JobFile::Create(folder_, {.run_id = "first", .pid = 11, .began_ms = 1});
    EXPECT_THAT(Listed(), ElementsAre("first", "second"));
  }
  ASSERT_THAT(Listed(), ElementsAre("second"));
  const JobEntry found = ListJobs(folder_).front();
  EXPECT_EQ(found.pid, 12);
  EXPECT_EQ(found.node, "a");
  EXPECT_EQ(found.endpoint, "a:1");
  EXPECT_EQ(found.socket, "s");
  EXPECT_EQ(found.began_ms, 2);
}

TEST_F(JobFileTest, WhatAKilledProcessLeavesIsRemoved) {
  const pid_t child = ::fork();
  if (child == 0) {
    const absl::StatusOr<JobFile> file =
        JobFile::Create(folder_, {.run_id = "killed", .pid = ::getpid()});
    ::_exit(file.ok() ? 0 : 1);  // Without its destructor.
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  std::ofstream(folder_ + "/" + JobFileName(child, "killed") + ".sock") << "left";
  ASSERT_FALSE(IsEmptyFolder());
  EXPECT_THAT(Listed(), IsEmpty());
  EXPECT_TRUE(IsEmptyFolder());
}

TEST_F(JobFileTest, RunIdsMayBeAnyText) {
  const std::string id = "a/../\xff\n" + std::string(300, 'x');
  const absl::StatusOr<JobFile> file = JobFile::Create(folder_, {.run_id = id, .pid = 1});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Listed().size(), 1U);
}

TEST_F(JobFileTest, WhatIsNoEntryIsPassedBy) {
  std::ofstream(folder_ + "/README") << "text";
  EXPECT_THAT(Listed(), IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/README"));
  EXPECT_THAT(ListJobs(folder_ + "/nothing"), IsEmpty());
  EXPECT_FALSE(JobFile::Create(folder_ + "/nothing", {}).ok());
}

}  // namespace
}  // namespace fsdprun
