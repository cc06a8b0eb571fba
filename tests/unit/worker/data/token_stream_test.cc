#include "worker/data/token_stream.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "formats/json/strict_json.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun::worker {
namespace {

class TokenStreamTest : public testing::Test {
 protected:
  TokenStreamTest() {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("token_stream_" + std::to_string(getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~TokenStreamTest() override { RemoveFolder(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  static std::vector<int64_t> Copy(const TokenStream& stream, int64_t begin, int64_t count) {
    std::vector<int64_t> tokens(static_cast<size_t>(count));
    stream.CopyTokens(begin, count, tokens.data());
    return tokens;
  }

  std::filesystem::path folder_;
};

std::string Refusal(const std::string& path) {
  try {
    TokenStream stream({path});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(TokenStreamTest, MissingFileAndFolderAreNamed) {
  EXPECT_EQ(Refusal("/nonexistent/corpus.txt"),
            "cannot read data file /nonexistent/corpus.txt: No such file or directory");
  EXPECT_EQ(Refusal(folder_.string()),
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

}  // namespace
}  // namespace fsdprun::worker
