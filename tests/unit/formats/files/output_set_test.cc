#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "formats/files/output_file.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"

namespace fsdprun {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::ElementsAre;
using testing::HasSubstr;

class PublishTogetherTest : public testing::Test {
 protected:
  OutputFile* Begin(const std::string& name, Existing existing) {
    files_.push_back(std::make_unique<OutputFile>(folder_ / name, kUnknownSize, existing));
    files_.back()->Write(0, "new " + name);
    return files_.back().get();
  }
  void WriteOld(const std::string& name) const { std::ofstream(folder_ / name) << "old " << name; }

  TemporaryDirectory folder_{MemoryDirectory()};
  std::vector<std::unique_ptr<OutputFile>> files_;
};

TEST_F(PublishTogetherTest, WhatFailsLateLeavesOldFilesAsTheyWere) {
  WriteOld("a");
  WriteOld("stale");
  const std::vector<OutputFile*> all = {Begin("a", Existing::kReplace),
                                        Begin("b", Existing::kReplace),
                                        Begin("c", Existing::kRefuse)};
  // It comes after its name was found to be free.
  WriteOld("c");
  EXPECT_THAT(MessageOf<Error>([&] { PublishTogether(all, {folder_ / "stale"}); }),
              HasSubstr("refused to write " + folder_ / "c"));
  files_.clear();
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("a", "c", "stale"));
  EXPECT_EQ(Content(folder_ / "a"), "old a");
  EXPECT_EQ(Content(folder_ / "c"), "old c");
}

TEST_F(PublishTogetherTest, AFolderIsNotReplaced) {
  WriteOld("a");
  std::filesystem::create_directory(folder_ / "b");
  const std::vector<OutputFile*> all = {Begin("a", Existing::kReplace),
                                        Begin("b", Existing::kReplace)};
  EXPECT_THAT(MessageOf<Error>([&] { PublishTogether(all, {}); }),
              HasSubstr("cannot replace " + folder_ / "b: Is a directory"));
  files_.clear();
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("a", "b"));
  EXPECT_EQ(Content(folder_ / "a"), "old a");
}

TEST_F(PublishTogetherTest, NewFilesTakeThePlaceOfOldOnes) {
  WriteOld("a");
  WriteOld("stale");
  const std::vector<OutputFile*> all = {Begin("a", Existing::kReplace),
                                        Begin("b", Existing::kReplace)};
  all[1]->Finish();
  all[1]->SetPath(folder_ / "c");
  PublishTogether(all, {folder_ / "stale", folder_ / "none"});
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("a", "c"));
  EXPECT_EQ(Content(folder_ / "a"), "new a");
  EXPECT_EQ(Content(folder_ / "c"), "new b");
  files_.clear();
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("a", "c"));
}

}  // namespace
}  // namespace fsdprun
