#include "tests/unit/worker/checkpoint/power_loss_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

namespace fsdprun::checkpoint {
namespace {

using ::testing::SizeIs;

// What the model itself makes of a few changes: else all of the above could hold for nothing.
class PowerLossDiskTest : public testing::Test {
 protected:
  void Do(const std::string& name, const std::string& path, const std::string& more = {}) {
    const bool has_from = name == "rename" || name == "exchange";
    disk_.Apply({.rank = rank_,
                 .name = name,
                 .path = "/r" + path,
                 .from = has_from ? "/r" + more : std::string(),
                 .bytes = has_from ? std::string() : more});
  }
  std::set<Tree> Left() const { return disk_.AfterPowerLoss(); }

  int64_t rank_ = 0;
  PowerLossDisk disk_{"/r"};
};

TEST_F(PowerLossDiskTest, FileNeedsASyncOfItselfAndOneOfItsDirectory) {
  Do("create", "/f");
  Do("write", "/f", "abcd");
  const std::set<Tree> all = {
      {}, {{"f", ""}}, {{"f", "ab"}}, {{"f", std::string(4, '\0')}}, {{"f", "abcd"}}};
  EXPECT_EQ(Left(), all);
  Do("sync", "/f");
  EXPECT_EQ(Left(), (std::set<Tree>{{}, {{"f", "abcd"}}}));
  Do("sync_directory", "");
  EXPECT_EQ(Left(), (std::set<Tree>{{{"f", "abcd"}}}));
  EXPECT_EQ(disk_.Now(), (Tree{{"f", "abcd"}}));
}

TEST_F(PowerLossDiskTest, ChangesOfOtherNamesAreDurableInAnyOrder) {
  Do("make_directory", "/d");
  Do("create", "/d/f");
  Do("sync_directory", "");
  Do("sync_directory", "/d");
  EXPECT_THAT(Left(), SizeIs(1));
  Do("rename", "/e", "/d");
  Do("remove", "/e");
  EXPECT_EQ(Left(), (std::set<Tree>{{{"d", std::nullopt}, {"d/f", ""}},
                                    {{"d", std::nullopt}},
                                    {{"e", std::nullopt}, {"e/f", ""}},
                                    {{"e", std::nullopt}},
                                    {}}));
}

TEST_F(PowerLossDiskTest, SwapIsThereAsAWholeOrNotAtAll) {
  for (const char* name : {"/a", "/b"}) {
    Do("create", name);
    Do("write", name, name);
    Do("sync", name);
  }
  Do("sync_directory", "");
  Do("exchange", "/b", "/a");
  EXPECT_EQ(Left(), (std::set<Tree>{{{"a", "/a"}, {"b", "/b"}}, {{"a", "/b"}, {"b", "/a"}}}));
}

TEST_F(PowerLossDiskTest, SyncOfADirectoryIsOfTheRanksOwnChanges) {
  Do("create", "/f");
  rank_ = 1;
  Do("create", "/g");
  Do("sync_directory", "");
  EXPECT_EQ(Left(), (std::set<Tree>{{{"g", ""}}, {{"f", ""}, {"g", ""}}}));
}

}  // namespace
}  // namespace fsdprun::checkpoint
