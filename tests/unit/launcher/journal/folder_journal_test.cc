#include "launcher/journal/folder_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/base/remove_folder.h"
#include "tests/unit/launcher/journal/record_sample.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FolderJournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = absl::StrCat(::testing::TempDir(), "/journalXXXXXX");
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    parent_ = name;
    folder_ = name + "/job";
  }
  void TearDown() override { RemoveFolder(parent_); }

  std::unique_ptr<FolderJournal> Open() {
    absl::StatusOr<std::unique_ptr<FolderJournal>> journal =
        FolderJournal::Open(folder_, SampleJob());
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  std::string WhyNot(const std::string& folder, const JournaledJob& job) {
    return std::string(FolderJournal::Open(folder, job).status().message());
  }

  std::string parent_;
  std::string folder_;
};

TEST_F(FolderJournalTest, IsEmptyAtFirst) { EXPECT_FALSE(Open()->found().has_value()); }

TEST_F(FolderJournalTest, HasTheLastRecord) {
  {
    const auto journal = Open();
    ASSERT_TRUE(journal->Write(job::Record()).ok());
    ASSERT_TRUE(journal->Write(SampleRecord()).ok());
  }
  const auto journal = Open();
  ASSERT_TRUE(journal->found().has_value());
  EXPECT_EQ(journal->found()->generation, Generation(5));
  EXPECT_EQ(journal->found()->world.members.size(), 2u);
}

TEST_F(FolderJournalTest, IsOfOneCoordinatorAtATime) {
  const auto journal = Open();
  EXPECT_THAT(WhyNot(folder_, SampleJob()),
              AllOf(HasSubstr("another coordinator uses"),
                    HasSubstr(absl::StrCat("process ", ::getpid(), " on "))));
}

TEST_F(FolderJournalTest, IsOfOneJob) {
  ASSERT_TRUE(Open()->Write(SampleRecord()).ok());
  JournaledJob other = SampleJob();
  other.run_id = "other";
  EXPECT_THAT(WhyNot(folder_, other), AllOf(HasSubstr("run id 'run/"), HasSubstr("'other'")));
  other = SampleJob();
  other.max_nodes = 9;
  EXPECT_THAT(WhyNot(folder_, other), AllOf(HasSubstr("--nnodes 1:2"), HasSubstr("--nnodes 1:9")));
  other = SampleJob();
  other.max_restarts = 9;
  EXPECT_THAT(WhyNot(folder_, other), HasSubstr("--max-restarts 9"));
}

TEST_F(FolderJournalTest, ThatWasCutOffIsRefused) {
  ASSERT_TRUE(Open()->Write(SampleRecord()).ok());
  std::filesystem::resize_file(folder_ + "/record", 100);
  EXPECT_THAT(WhyNot(folder_, SampleJob()), HasSubstr("cannot be used: it is cut off"));
}

TEST_F(FolderJournalTest, WriteThatWasNotFinishedChangesNothing) {
  ASSERT_TRUE(Open()->Write(SampleRecord()).ok());
  std::ofstream(folder_ + "/record.new") << "half";
  const auto journal = Open();
  ASSERT_TRUE(journal->found().has_value());
  EXPECT_TRUE(journal->Write(job::Record()).ok());
}

TEST_F(FolderJournalTest, FolderThatCannotBeMadeIsNamed) {
  EXPECT_THAT(WhyNot(parent_ + "/no/such", SampleJob()),
              AllOf(HasSubstr("/no/such"), HasSubstr("No such file or directory")));
  std::ofstream(parent_ + "/file") << "x";
  EXPECT_THAT(WhyNot(parent_ + "/file", SampleJob()), HasSubstr("Not a directory"));
}

/// As on a disk that is full: nothing more can be written, and what was there stays.
TEST_F(FolderJournalTest, WhatCannotBeWrittenIsTold) {
  const auto journal = Open();
  ASSERT_TRUE(journal->Write(SampleRecord()).ok());
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{16, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = journal->Write(job::Record());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  ::signal(SIGXFSZ, before);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cannot write"), HasSubstr("File too large")));
  EXPECT_TRUE(journal->Write(job::Record()).ok());
}

}  // namespace
}  // namespace fsdprun
