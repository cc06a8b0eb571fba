#include "formats/files/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"

namespace fsdprun {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::HasSubstr;

constexpr int64_t kTooMuch = int64_t{1} << 60;

TEST(OutputFileTest, FullDiskNamesPathAndBytesAndLeavesNothing) {
  const TemporaryDirectory folder;
  const std::string message =
      MessageOf<Error>([&] { OutputFile(folder / "a", kTooMuch, Existing::kRefuse); });
  EXPECT_THAT(message, HasSubstr(folder / "a"));
  EXPECT_THAT(message, HasSubstr(std::to_string(kTooMuch) + " bytes are needed"));
  EXPECT_THAT(message, HasSubstr("bytes are free"));
  EXPECT_EQ(NamesOf(folder.path()).size(), 0U);
}

TEST(OutputFileTest, ExistingFileIsRefused) {
  const TemporaryDirectory folder;
  WriteOutput(folder / "a", "old", Existing::kRefuse);
  EXPECT_THAT(MessageOf<Error>([&] { WriteOutput(folder / "a", "new", Existing::kRefuse); }),
              HasSubstr("--force"));
  EXPECT_EQ(Content(folder / "a"), "old");
}

TEST(OutputFileTest, FileThatComesMeanwhileIsNotReplaced) {
  const TemporaryDirectory folder;
  OutputFile file(folder / "a", 3, Existing::kRefuse);
  file.Write(0, "new");
  std::ofstream(folder / "a") << "old";
  EXPECT_THROW(file.Publish(), Error);
  EXPECT_EQ(Content(folder / "a"), "old");
}

TEST(OutputFileTest, UnpublishedFileDisappears) {
  const TemporaryDirectory folder;
  {
    OutputFile file(folder / "a", 3, Existing::kRefuse);
    file.Write(0, "abc");
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  }
  EXPECT_EQ(NamesOf(folder.path()).size(), 0U);
}

TEST(OutputFileTest, AFileOfUnknownSizeEndsWithTheLastByteWritten) {
  const TemporaryDirectory folder;
  OutputFile file(folder / "a", kUnknownSize, Existing::kRefuse);
  file.Write(4, "efg");
  file.Write(0, "abcd");
  EXPECT_THAT(MessageOf<Error>([&] { file.Write(-1, "x"); }), HasSubstr("at byte -1"));
  EXPECT_THAT(MessageOf<Error>([&] { file.Write(INT64_MAX, "x"); }), HasSubstr("cannot write"));
  file.Publish();
  EXPECT_EQ(Content(folder / "a"), "abcdefg");
}

TEST(OutputFileTest, WritesOutsideAreRefused) {
  const TemporaryDirectory folder;
  OutputFile file(folder / "a", 3, Existing::kRefuse);
  EXPECT_THROW(file.Write(1, "abc"), Error);
  EXPECT_THROW(file.Write(-1, "a"), Error);
  EXPECT_THROW(file.Write(4, ""), Error);
}

TEST(OutputFileTest, PiecesComeInAnyOrder) {
  const TemporaryDirectory folder;
  WriteOutput(folder / "a", "old", Existing::kRefuse);
  OutputFile file(folder / "a", 6, Existing::kReplace);
  file.Write(3, "def");
  file.Write(0, "abc");
  file.Publish();
  EXPECT_EQ(Content(folder / "a"), "abcdef");
  EXPECT_EQ(NamesOf(folder.path()).size(), 1U);
}

}  // namespace
}  // namespace fsdprun
