#include "worker/tokenize/token_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

#include "formats/tokens/token_file_info.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

class TokenOutputTest : public testing::Test {
 protected:
  TokenOutputTest() {
    options_.prefix = folder_ / "a";
    options_.info.vocab_size = 256;
    options_.info.tokenizer = {"bytes", "0123456789abcdef"};
  }

  void Write(const std::string& name) const { std::ofstream(folder_ / name) << "old"; }
  /// One document of so many tokens.
  std::vector<std::string> Run(size_t tokens) const {
    TokenOutput output(options_);
    const std::vector<uint32_t> ids(tokens, 7);
    output.AddDocument(ids.data(), ids.size());
    return output.Publish();
  }
  std::vector<std::string> Names() const { return NamesOf(folder_.path()); }

  TemporaryDirectory folder_{MemoryDirectory()};
  TokenOutput::Options options_;
};

TEST_F(TokenOutputTest, AnythingOfADataSetIsRefusedAtOnce) {
  for (const std::string name :
       {"a.bin", "a.bin.json", "a.idx", "a_000002.bin", "a_000002.idx", "a_1000000.bin.json"}) {
    Write(name);
    EXPECT_THAT(MessageOf<fsdp::archive::Error>([&] { TokenOutput output(options_); }),
                HasSubstr("refused to write " + folder_ / name));
    EXPECT_THAT(Names(), ElementsAre(name));
    std::filesystem::remove(folder_ / name);
  }
  for (const char* name : {"a.txt", "a_00002.bin", "ab.bin", "a_000002_x.bin", "b_000002.bin"}) {
    Write(name);
  }
  EXPECT_EQ(FilesOfDataSet(options_.prefix).size(), 0U);
  EXPECT_EQ(FilesOfDataSet(folder_ / "none/a").size(), 0U);
}

TEST_F(TokenOutputTest, FilesOfAnEarlierRunAreNotReadWithTheNewOnes) {
  options_.existing = Existing::kReplace;
  options_.shard_tokens = 2;
  Run(7);
  Write("a_000002.idx");
  Write("a.idx");
  EXPECT_EQ(Run(3).size(), 2U);
  EXPECT_THAT(Names(), ElementsAre("a.idx", "a_000001.bin", "a_000001.bin.json", "a_000002.bin",
                                   "a_000002.bin.json"));
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "a_000002.bin.json").tokens, 1);
  options_.shard_tokens = 0;
  Run(3);
  EXPECT_THAT(Names(), testing::Not(testing::Contains("a.idx")));
}

TEST_F(TokenOutputTest, AFileThatIsFullIsFollowedByAnother) {
  options_.most_llmc_tokens = 3;
  EXPECT_THAT(Run(3), ElementsAre(folder_ / "a.bin"));
  options_.existing = Existing::kReplace;
  EXPECT_THAT(Run(7), ElementsAre(folder_ / "a_000001.bin", folder_ / "a_000002.bin",
                                  folder_ / "a_000003.bin"));
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "a_000001.bin.json").tokens, 3);
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "a_000003.bin.json").tokens, 1);
}

TEST_F(TokenOutputTest, FilesThatAreWholeNeedNoDescriptors) {
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  options_.shard_tokens = 1;
  EXPECT_EQ(Run(100).size(), 100U);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(TokenOutputTest, AnErrorWithTheLastFileKeepsTheOldOnes) {
  options_.existing = Existing::kReplace;
  options_.format = TokenFormat::kMegatron;
  Run(3);
  const std::string index = Content(folder_ / "a.idx");
  std::filesystem::remove(folder_ / "a.bin");
  std::filesystem::create_directory(folder_ / "a.bin");
  EXPECT_THAT(MessageOf<fsdp::archive::Error>([&] { Run(5); }),
              HasSubstr("cannot replace " + folder_ / "a.bin"));
  EXPECT_EQ(Content(folder_ / "a.idx"), index);
  EXPECT_EQ(ReadTokenFileInfo(folder_ / "a.bin.json").tokens, 3);
  EXPECT_THAT(Names(), ElementsAre("a.bin", "a.bin.json", "a.idx"));
}

TEST_F(TokenOutputTest, TheVocabularyDecidesHowIdsAreStored) {
  EXPECT_EQ(DtypeOf(TokenFormat::kLlmc, 256), TokenDtype::kUint16);
  EXPECT_EQ(DtypeOf(TokenFormat::kLlmc, 65536), TokenDtype::kUint16);
  EXPECT_EQ(DtypeOf(TokenFormat::kRaw, 65537), TokenDtype::kUint32);
  EXPECT_EQ(DtypeOf(TokenFormat::kMegatron, 65499), TokenDtype::kUint16);
  EXPECT_EQ(DtypeOf(TokenFormat::kMegatron, 65500), TokenDtype::kInt32);
}

}  // namespace
}  // namespace fsdprun::worker
