#include "worker/data/token_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>

#include "formats/json/strict_json.h"
#include "tests/unit/worker/data/data_folder.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;

class TokenStreamTest : public DataFolderTest {};

std::string RefusalOfFile(const std::string& path) {
  return RefusalOf([&] { const TokenStream stream({path}); });
}

TEST_F(TokenStreamTest, MissingFileAndFolderAreNamed) {
  EXPECT_EQ(RefusalOfFile("/nonexistent/corpus.txt"),
            "cannot read data file /nonexistent/corpus.txt: No such file or directory");
  EXPECT_EQ(RefusalOfFile(folder_.string()),
            "cannot read data file " + folder_.string() + ": it is not a regular file");
}

TEST_F(TokenStreamTest, EveryByteValueIsItsToken) {
  std::string bytes;
  for (int value = 0; value < 256; ++value) {
    bytes.push_back(static_cast<char>(value));
  }
  const TokenStream stream({Write("bytes", bytes)});
  const std::vector<int64_t> tokens = Copy(stream, 0, 256);
  for (int64_t value = 0; value < 256; ++value) {
    EXPECT_EQ(tokens[static_cast<size_t>(value)], value);
  }
}

TEST_F(TokenStreamTest, FilesAreOneStreamInTheirOrderEmptyOnesIncluded) {
  const TokenStream stream({Write("empty0", ""), Write("a", "abc"), Write("empty1", ""),
                            Write("b", "de"), Write("empty2", "")});
  EXPECT_EQ(stream.size(), 5);
  EXPECT_EQ(Copy(stream, 0, 5), (std::vector<int64_t>{'a', 'b', 'c', 'd', 'e'}));
  EXPECT_EQ(Copy(stream, 2, 2), (std::vector<int64_t>{'c', 'd'}));
  EXPECT_EQ(Copy(stream, 3, 2), (std::vector<int64_t>{'d', 'e'}));
  EXPECT_TRUE(Copy(stream, 5, 0).empty());
  EXPECT_THAT(stream.FileEnds(), ElementsAre(3, 5));
}

TEST_F(TokenStreamTest, RangesOutsideThrow) {
  const TokenStream stream({Write("a", "abc")});
  int64_t token = 0;
  EXPECT_THROW(stream.CopyTokens(3, 1, &token), std::out_of_range);
  EXPECT_THROW(stream.CopyTokens(2, 2, &token), std::out_of_range);
  EXPECT_THROW(stream.CopyTokens(-1, 1, &token), std::out_of_range);
  EXPECT_THROW(stream.CopyTokens(0, INT64_MAX, &token), std::out_of_range);
}

TEST_F(TokenStreamTest, FileThatBecomesShorterIsNamedWithTheOffset) {
  const std::string path = Write("b", std::string(20'000, 'x'));
  const TokenStream stream({Write("a", "abc"), path});
  std::filesystem::resize_file(path, 9'000);
  EXPECT_EQ(Copy(stream, 9'000, 3).size(), 3u);
  try {
    Copy(stream, 8'999, 10);
    FAIL() << "read what is not there";
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()),
              "cannot read data file " + path +
                  " at offset 9000: it had 20000 bytes when the run began and has become shorter; "
                  "restore it, and do not change data files while a job reads them");
  }
}

TEST_F(TokenStreamTest, MoreFilesThanTheSoftLimitOfDescriptors) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{32, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const TokenStream stream(std::vector<std::string>(100, Write("a", "ab")));
  EXPECT_EQ(stream.size(), 200);
  EXPECT_EQ(Copy(stream, 199, 1), (std::vector<int64_t>{'b'}));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(TokenStreamTest, LastWindowNeedsATarget) {
  EXPECT_EQ(TokenStream({Write("a", "12345678")}).window_count(4), 1);
  EXPECT_EQ(TokenStream({Write("b", "123456789")}).window_count(4), 2);
  EXPECT_EQ(TokenStream({Write("c", "1234")}).window_count(4), 0);
  EXPECT_EQ(TokenStream({Write("d", "")}).window_count(4), 0);
}

TEST_F(TokenStreamTest, PartsOfSeveralWidthsAreOneStream) {
  const auto part = [](const std::string& path, TokenDtype dtype, int64_t offset, int64_t tokens) {
    return TokenPart{std::make_shared<const DataFile>(path), dtype, offset, tokens};
  };
  const TokenStream stream(
      {part(Write("a", LlmcFile({1, 2, 3})), TokenDtype::kUint16, 1024, 3),
       part(Write("b", "x" + StoredList<int32_t>({70000, 5})), TokenDtype::kInt32, 1, 2)},
      {.is_text = false, .id_limit = 70001});
  EXPECT_THAT(CopyAll(stream), ElementsAre(1, 2, 3, 70000, 5));
  EXPECT_THAT(Copy(stream, 2, 2), ElementsAre(3, 70000));
}

TEST_F(TokenStreamTest, IdBeyondTheVocabularyIsNamedWithItsOffset) {
  std::vector<uint16_t> tokens(40'000, 7);  // more than is read at once
  tokens[33'333] = 100;
  const auto stream = StreamOf(Path("a"), tokens, {.id_limit = 100});
  EXPECT_EQ(Copy(*stream, 0, 33'333).size(), 33'333u);
  EXPECT_EQ(RefusalOf([&] { CopyAll(*stream); }),
            "data file " + Path("a") +
                ": token 33333, uint16 at offset 66666, is 100: expected an id below the model's "
                "vocab_size, 100; train on tokens of the model's tokenizer, or correct data.dtype "
                "if it was given");
  EXPECT_THROW(Copy(*stream, 33'333, 1), TokenIdError);
}

TEST_F(TokenStreamTest, NegativeIdIsBeyondTheVocabulary) {
  const TokenPart part{std::make_shared<const DataFile>(Write("a", StoredList<int16_t>({5, -2}))),
                       TokenDtype::kInt16, 0, 2};
  const TokenStream stream({part}, {.is_text = false, .id_limit = 100});
  EXPECT_NE(RefusalOf([&] { CopyAll(stream); }).find("int16 at offset 2, is -2"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdprun::worker
