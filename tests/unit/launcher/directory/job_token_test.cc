#include "launcher/directory/job_token.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

class JobTokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/job_token_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    environment_["XDG_RUNTIME_DIR"] = folder_;
  }
  void TearDown() override { RemoveFolder(folder_); }

  std::string folder_;
  Environment environment_;
};

TEST_F(JobTokenTest, FileIsPrivateReadableByTheOwnerAndRemoved) {
  const std::string path = TokenFile::Path(environment_, 123, "a/../b").value();
  EXPECT_EQ(std::filesystem::path(path).parent_path(), folder_ + "/fsdprun");
  {
    const TokenFile file = TokenFile::Create(path).value();
    EXPECT_EQ(file.token().size(), 64u);
    EXPECT_EQ(TokenFile::Read(path).value(), file.token());
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_TRUE(absl::IsUnavailable(TokenFile::Read(path).status()));
}

TEST_F(JobTokenTest, EachFileHasAFreshTokenAndReplacesAStaleOne) {
  const std::string path = TokenFile::Path(environment_, 123, "id").value();
  TokenFile first = TokenFile::Create(path).value();
  const TokenFile second = TokenFile::Create(path).value();
  EXPECT_NE(first.token(), second.token());
  EXPECT_EQ(TokenFile::Read(path).value(), second.token());
}

TEST_F(JobTokenTest, LinksAndOpenFilesAreRefused) {
  const std::string path = TokenFile::Path(environment_, 123, "id").value();
  std::ofstream(folder_ + "/real") << std::string(64, 'a');
  std::filesystem::create_symlink(folder_ + "/real", path);
  EXPECT_FALSE(TokenFile::Read(path).ok());
  std::filesystem::remove(path);
  std::filesystem::copy(folder_ + "/real", path);
  ::chmod(path.c_str(), 0644);
  EXPECT_TRUE(absl::IsPermissionDenied(TokenFile::Read(path).status()));
}

TEST_F(JobTokenTest, OpenFolderIsRefused) {
  ::mkdir((folder_ + "/fsdprun").c_str(), 0700);
  ::chmod((folder_ + "/fsdprun").c_str(), 0770);
  EXPECT_TRUE(absl::IsPermissionDenied(TokenFile::Path(environment_, 1, "id").status()));
}

TEST_F(JobTokenTest, GivenTokenComesFromTheFileThenTheEnvironment) {
  std::ofstream(folder_ + "/t") << "  from file \n";
  EXPECT_EQ(GivenToken({}, "").value(), "");
  EXPECT_EQ(GivenToken({}, folder_ + "/t").value(), "from file");
  EXPECT_EQ(GivenToken({{"FSDPRUN_TOKEN", "from env"}}, "").value(), "from env");
  EXPECT_EQ(GivenToken({{"FSDPRUN_TOKEN", "from env"}}, folder_ + "/t").value(), "from file");
  EXPECT_FALSE(GivenToken({{"FSDPRUN_TOKEN", "from env"}}, folder_ + "/missing").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(GivenToken({}, folder_ + "/missing").status()));
  for (const char* unsendable : {"gr\xc3\xbcn", "two\nlines", "tab\t", "\x7f"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(GivenToken({{"FSDPRUN_TOKEN", unsendable}}, "").status()));
    std::ofstream(folder_ + "/odd") << unsendable << "x";
    EXPECT_FALSE(GivenToken({}, folder_ + "/odd").ok()) << unsendable;
  }
  std::ofstream(folder_ + "/empty") << "\n";
  EXPECT_TRUE(absl::IsInvalidArgument(GivenToken({}, folder_ + "/empty").status()));
}

}  // namespace
}  // namespace fsdprun
