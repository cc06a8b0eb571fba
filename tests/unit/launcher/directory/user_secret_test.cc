#include "launcher/directory/user_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "launcher/directory/job_token.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

class UserSecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/user_secret_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    environment_["HOME"] = folder_;
    path_ = folder_ + "/.config/fsdprun/secret";
  }
  void TearDown() override { RemoveFolder(folder_); }

  absl::Status Refusal() { return LoadUserSecret(environment_).status(); }

  std::string folder_;
  std::string path_;
  Environment environment_;
};

TEST_F(UserSecretTest, IsMadeOnceAndPrivate) {
  const UserSecret first = LoadUserSecret(environment_).value();
  EXPECT_EQ(first.path, path_);
  EXPECT_EQ(first.value.size(), 64u);
  EXPECT_TRUE(first.is_new);
  EXPECT_EQ(LoadUserSecret(environment_).value().value, first.value);
  EXPECT_FALSE(LoadUserSecret(environment_).value().is_new);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((folder_ + "/.config/fsdprun").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(UserSecretTest, XdgConfigHomeComesFirst) {
  environment_["XDG_CONFIG_HOME"] = folder_ + "/xdg";
  EXPECT_EQ(LoadUserSecret(environment_).value().path, folder_ + "/xdg/fsdprun/secret");
  environment_["XDG_CONFIG_HOME"] = "relative";
  EXPECT_EQ(LoadUserSecret(environment_).value().path, path_);
}

TEST_F(UserSecretTest, ThoseWhoMakeItAtOnceAgree) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> secrets(4);
    std::vector<std::thread> makers;
    for (std::string& secret : secrets) {
      makers.emplace_back([&] { secret = LoadUserSecret(environment_).value().value; });
    }
    for (std::thread& maker : makers) {
      maker.join();
    }
    EXPECT_THAT(secrets, ::testing::Each(secrets.front()));
    // Nothing but the secret is left.
    const std::filesystem::path place = folder_ + "/.config/fsdprun";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(place), {}), 1);
    RemoveFolder(place);
  }
}

TEST_F(UserSecretTest, WhatOthersCanReadIsRefusedWithWhatToDo) {
  ASSERT_TRUE(LoadUserSecret(environment_).ok());
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(Refusal()));
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr(path_));
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("remove it"));
}

TEST_F(UserSecretTest, WhatIsNotOursOrNoSecretIsRefused) {
  ASSERT_TRUE(LoadUserSecret(environment_).ok());
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
    EXPECT_THAT(std::string(Refusal().message()), HasSubstr("user 12345"));
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("no file"));
  std::filesystem::remove(path_);
  std::ofstream(path_) << "short";
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("too short"));
}

TEST_F(UserSecretTest, WithoutAPlaceThereIsNone) {
  for (const char* home : {"", "relative", "/dev/null", "/proc/self"}) {
    environment_["HOME"] = home;
    EXPECT_TRUE(absl::IsNotFound(Refusal())) << home << ": " << Refusal();
  }
  EXPECT_TRUE(absl::IsNotFound(LoadUserSecret({}).status()));
}

TEST_F(UserSecretTest, TokenIsGivenOrTheSecretOrAFileOfThisMachine) {
  LaunchPlan plan;
  const NumericEndpoint here{"127.0.0.1", 29400};
  const NumericEndpoint network{"192.0.2.1", 29400};
  const JobToken of_user = ChooseToken(plan, environment_, network).value();
  EXPECT_EQ(of_user.value, LoadUserSecret(environment_).value().value);
  EXPECT_THAT(of_user.advice, HasSubstr(path_));
  environment_["FSDPRUN_TOKEN"] = "given";
  EXPECT_EQ(ChooseToken(plan, environment_, network).value().value, "given");
  Environment homeless{{"XDG_RUNTIME_DIR", folder_}};
  EXPECT_EQ(ChooseToken(plan, homeless, here).value().value, "");
  EXPECT_THAT(ChooseToken(plan, homeless, here).value().path, HasSubstr(folder_));
  const absl::Status refusal = ChooseToken(plan, homeless, network).status();
  EXPECT_THAT(std::string(refusal.message()), HasSubstr("HOME is not set"));
}

}  // namespace
}  // namespace fsdprun
