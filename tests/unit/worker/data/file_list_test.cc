#include "worker/data/file_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/data/data_folder.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FileListTest : public DataFolderTest {};

TEST_F(FileListTest, PatternWithoutMatchesIsRefused) {
  EXPECT_THAT(RefusalOf([&] { ExpandPaths("data.valid", {Path("part-*.bin")}); }),
              HasSubstr("data.valid: \"" + Path("part-*.bin") + "\" matches no file"));
}

TEST_F(FileListTest, MatchesAreSortedAndStandWhereThePatternStood) {
  for (const char* name : {"part-10.txt", "part-2.txt", "part-1.txt", "other.txt"}) {
    Write(name, "x");
  }
  EXPECT_THAT(ExpandPaths("data.train", {Path("other.txt"), Path("part-*.txt"), "/nowhere"}),
              ElementsAre(Path("other.txt"), Path("part-1.txt"), Path("part-10.txt"),
                          Path("part-2.txt"), "/nowhere"));
  EXPECT_THAT(ExpandPaths("data.train", {Path("part-[12].txt")}),
              ElementsAre(Path("part-1.txt"), Path("part-2.txt")));
}

TEST_F(FileListTest, PathThatExistsIsNoPattern) {
  Write("a[1].txt", "x");
  EXPECT_THAT(ExpandPaths("data.train", {Path("a[1].txt")}), ElementsAre(Path("a[1].txt")));
}

TEST(WithoutDescriptionsTest, OnlyTheDataStay) {
  EXPECT_THAT(WithoutDescriptions({"a.bin", "a.bin.json", "a.idx", "b.ds", "b.ds.index",
                                   "b.ds.loss", "b.ds.metadata", "c.txt"}),
              ElementsAre("a.bin", "b.ds", "c.txt"));
  EXPECT_THAT(WithoutDescriptions({"a.idx", "b.json"}), ElementsAre("a.idx", "b.json"));
  EXPECT_THAT(WithoutDescriptions({}), IsEmpty());
}

}  // namespace
}  // namespace fsdprun::worker
