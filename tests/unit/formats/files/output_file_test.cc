#include "formats/files/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "formats/files/output_folder.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::HasSubstr;

constexpr int64_t kTooMuch = int64_t{1} << 60;

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t CountIn(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                           std::filesystem::directory_iterator()));
}

bool NoneIsStale(const std::string& /*name*/) { return false; }

TEST(OutputFileTest, FullDiskNamesPathAndBytesAndLeavesNothing) {
  const TemporaryDirectory folder;
  const std::string message =
      MessageOf<Error>([&] { OutputFile(folder / "a", kTooMuch, Existing::kRefuse); });
  EXPECT_THAT(message, HasSubstr(folder / "a"));
  EXPECT_THAT(message, HasSubstr(std::to_string(kTooMuch) + " bytes are needed"));
  EXPECT_THAT(message, HasSubstr("bytes are free"));
  EXPECT_EQ(CountIn(folder.path()), 0U);
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
  EXPECT_EQ(CountIn(folder.path()), 0U);
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
  EXPECT_EQ(CountIn(folder.path()), 1U);
}

TEST(OutputFolderTest, UnpublishedFolderDisappears) {
  const TemporaryDirectory folder;
  {
    const OutputFolder output(folder / "out", 1, Existing::kRefuse);
    WriteOutput(output.Place("a"), "abc", Existing::kRefuse);
  }
  EXPECT_EQ(CountIn(folder.path()), 0U);
}

TEST(OutputFolderTest, ExistingFolderIsRefused) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "out");
  EXPECT_THAT(MessageOf<Error>([&] { OutputFolder(folder / "out", 1, Existing::kRefuse); }),
              HasSubstr("--force"));
  WriteOutput(folder / "file", "old", Existing::kRefuse);
  EXPECT_THAT(MessageOf<Error>([&] { OutputFolder(folder / "file", 1, Existing::kReplace); }),
              HasSubstr("no folder"));
  EXPECT_THAT(MessageOf<Error>([&] { OutputFolder(folder / "new", kTooMuch, Existing::kRefuse); }),
              HasSubstr("bytes are needed"));
}

TEST(OutputFolderTest, AppearsWithAllItsFiles) {
  const TemporaryDirectory folder;
  OutputFolder output(folder / "parent/out/", 1, Existing::kRefuse);
  WriteOutput(output.Place("a"), "abc", Existing::kRefuse);
  EXPECT_FALSE(std::filesystem::exists(folder / "parent/out"));
  output.Publish("a", NoneIsStale);
  EXPECT_EQ(Content(folder / "parent/out/a"), "abc");
  EXPECT_EQ(CountIn(folder / "parent"), 1U);
}

TEST(OutputFolderTest, ReplacesFilesAndLeavesOthers) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "out");
  for (const char* name : {"a", "stale", "mine"}) {
    WriteOutput(folder / ("out/" + std::string(name)), "old", Existing::kRefuse);
  }
  OutputFolder output(folder / "out", 1, Existing::kReplace);
  WriteOutput(output.Place("a"), "new", Existing::kRefuse);
  output.Publish("a", [](const std::string& name) { return name == "stale"; });
  EXPECT_EQ(Content(folder / "out/a"), "new");
  EXPECT_EQ(Content(folder / "out/mine"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "out/stale"));
  EXPECT_EQ(CountIn(folder.path()), 1U);
}

}  // namespace
}  // namespace fsdprun
