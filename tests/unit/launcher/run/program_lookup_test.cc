#include "launcher/run/program_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LocateProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/locate_program_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    for (const char* name : {"a", "b", "c"}) {
      std::filesystem::create_directory(absl::StrCat(folder_, "/", name));
    }
    environment_["PATH"] =
        absl::StrCat(folder_, "/none:", folder_, "/a:", folder_, "/b:", folder_, "/c");
  }
  void TearDown() override { RemoveFolder(folder_); }

  std::string Make(const std::string& name, std::filesystem::perms mode) {
    std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path) << "#!/bin/sh\n";
    std::filesystem::permissions(path, mode);
    return path;
  }

  std::string folder_;
  Environment environment_;
};

TEST_F(LocateProgramTest, FirstFolderThatHasItCounts) {
  const std::string first = Make("b/scontrol", std::filesystem::perms::owner_all);
  Make("c/scontrol", std::filesystem::perms::owner_all);
  EXPECT_EQ(LocateProgram("scontrol", environment_).value(), first);
}

TEST_F(LocateProgramTest, WhatCannotBeRunIsPassedOver) {
  std::filesystem::create_directory(folder_ + "/a/scontrol");
  Make("b/scontrol", std::filesystem::perms::owner_read);
  const std::string program = Make("c/scontrol", std::filesystem::perms::owner_all);
  EXPECT_EQ(LocateProgram("scontrol", environment_).value(), program);
}

TEST_F(LocateProgramTest, NoPathIsThatOfTheSystem) {
  EXPECT_THAT(LocateProgram("sh", {}).value(), HasSubstr("bin/sh"));
}

TEST_F(LocateProgramTest, ProgramThatIsNotThereIsNamed) {
  const absl::Status status = LocateProgram("scontrol", environment_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "cannot start scontrol: no such program on PATH");
}

TEST(IsAbsenceTest, FileSystemThatDoesNotAnswerDoesNotSayThatThereIsNone) {
  for (const int error : {ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG}) {
    EXPECT_TRUE(IsAbsence(error)) << error;
  }
  for (const int error : {EIO, ESTALE, ETIMEDOUT, EHOSTDOWN, ENOMEM}) {
    EXPECT_FALSE(IsAbsence(error)) << error;
  }
}

/// A lookup that hangs until the test ends it.
class ProgramLookupTest : public ::testing::Test {
 protected:
  ~ProgramLookupTest() override { End(); }

  void Begin() {
    lookup_.emplace(loop_, [ends = end_.get_future().share()]() -> ProgramLookup::Found {
      ends.wait();
      return "/usr/bin/scontrol";
    });
  }
  void End() {
    if (!has_ended_) {
      has_ended_ = true;
      end_.set_value();
    }
  }
  std::function<void(const ProgramLookup::Found&)> Note(const std::string& who) {
    return [this, who](const ProgramLookup::Found& found) {
      used_.push_back(absl::StrCat(who, ":", found.value_or("none")));
      waiter_.Notice();
    };
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::promise<void> end_;
  bool has_ended_ = false;
  std::vector<std::string> used_;
  std::optional<ProgramLookup> lookup_;
};

TEST_F(ProgramLookupTest, LoopGoesOnWhileAFolderHangs) {
  Begin();
  lookup_->Use(Note("first"));
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_THAT(used_, IsEmpty());
  End();
  ASSERT_TRUE(waiter_.RunUntil([this] { return !used_.empty(); }));
  lookup_->Use(Note("second"));
  EXPECT_THAT(used_, ElementsAre("first:/usr/bin/scontrol", "second:/usr/bin/scontrol"));
}

TEST_F(ProgramLookupTest, LatestWhoAsksIsAnswered) {
  Begin();
  lookup_->Use(Note("first"));
  lookup_->Use(Note("second"));
  End();
  ASSERT_TRUE(waiter_.RunUntil([this] { return !used_.empty(); }));
  EXPECT_THAT(used_, ElementsAre("second:/usr/bin/scontrol"));
}

TEST_F(ProgramLookupTest, WhatWasNotFoundIsLookedForAgainAndWhatWasFoundIsNot) {
  const auto searches = std::make_shared<int>(0);
  lookup_.emplace(loop_, [searches]() -> ProgramLookup::Found {
    if (++*searches == 1) {
      return absl::NotFoundError("not yet");
    }
    return "/usr/bin/scontrol";
  });
  for (const char* who : {"first", "second", "third"}) {
    const size_t before = used_.size();
    lookup_->Use(Note(who));
    ASSERT_TRUE(waiter_.RunUntil([this, before] { return used_.size() > before; }));
  }
  EXPECT_THAT(used_,
              ElementsAre("first:none", "second:/usr/bin/scontrol", "third:/usr/bin/scontrol"));
  EXPECT_EQ(*searches, 2);
}

TEST_F(ProgramLookupTest, WhatAnOlderSearchHasNotFoundIsLookedForOnceMore) {
  const auto searches = std::make_shared<std::atomic<int>>(0);
  lookup_.emplace(loop_, [searches, ends = end_.get_future().share()]() -> ProgramLookup::Found {
    if (++*searches == 1) {
      ends.wait();
    }
    return absl::NotFoundError("not there");
  });
  lookup_->Use(Note("first"));
  ASSERT_TRUE(waiter_.PollUntil([&searches] { return *searches == 1; }));
  lookup_->Use(Note("second"));
  End();
  ASSERT_TRUE(waiter_.RunUntil([this] { return !used_.empty(); }));
  EXPECT_THAT(used_, ElementsAre("second:none"));
  EXPECT_EQ(*searches, 2);
}

TEST_F(ProgramLookupTest, ProgramThatWasThereIsOnItsWayBack) {
  const auto searches = std::make_shared<int>(0);
  lookup_.emplace(loop_, [searches]() -> ProgramLookup::Found {
    if (++*searches == 1) {
      return "/old/scontrol";
    }
    return absl::NotFoundError("no such program on PATH");
  });
  std::vector<absl::Status> found;
  for (const size_t calls : {1, 2}) {
    lookup_->Use([&](const ProgramLookup::Found& each) {
      found.push_back(each.status());
      waiter_.Notice();
    });
    ASSERT_TRUE(waiter_.RunUntil([&] { return found.size() == calls; }));
    lookup_->Forget();
  }
  EXPECT_TRUE(found[0].ok());
  EXPECT_TRUE(absl::IsUnavailable(found[1]));
  EXPECT_EQ(found[1].message(),
            "no such program on PATH, where it was found before, as /old/scontrol");
}

TEST_F(ProgramLookupTest, EndDoesNotWaitForAFolderThatHangs) {
  Begin();
  lookup_->Use(Note("nobody"));
  lookup_.reset();
  End();
  EXPECT_TRUE(waiter_.RunUntil([] { return true; }));
  EXPECT_THAT(used_, IsEmpty());
}

}  // namespace
}  // namespace fsdprun
