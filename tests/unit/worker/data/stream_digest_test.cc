#include "worker/data/stream_digest.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "tests/unit/worker/data/data_folder.h"

namespace fsdprun::worker {
namespace {

class StreamDigestTest : public testing::Test {
 protected:
  ~StreamDigestTest() override { std::filesystem::remove(path_); }

  std::string Digest(const std::string& text, size_t size) {
    std::ofstream(path_, std::ios::binary) << text;
    return SampledDigest(TokenStream({path_}), static_cast<int64_t>(size));
  }
  std::string Digest(const std::string& text) { return Digest(text, text.size()); }

  const std::string path_ = testing::TempDir() + "stream_digest_" + std::to_string(getpid());
};

TEST_F(StreamDigestTest, EveryByteOfAShortTextCounts) {
  const std::string text(200'000, 'x');
  std::set<std::string> digests{Digest(text), Digest(text + "x")};
  for (const size_t at : std::vector<size_t>{0, 1, 65'535, 65'536, 131'072, 199'999}) {
    std::string changed = text;
    changed[at] = 'y';
    digests.insert(Digest(changed));
  }
  EXPECT_EQ(digests.size(), 8u);
  EXPECT_EQ(Digest(text), Digest(text));
  EXPECT_EQ(Digest("").size(), 16u);
}

TEST_F(StreamDigestTest, LongRunOfOtherTextInALongTextCounts) {
  const std::string text(20'000'000, 'x');
  std::set<std::string> digests{Digest(text)};
  for (const size_t at : std::vector<size_t>{0, 9'876'543, text.size() - 350'000}) {
    std::string changed = text;
    changed.replace(at, 350'000, 350'000, 'y');
    digests.insert(Digest(changed));
  }
  std::string changed = text;
  changed.back() = 'y';
  digests.insert(Digest(changed));
  EXPECT_EQ(digests.size(), 5u);
}

TEST_F(StreamDigestTest, BeginningOfALongerTextIsThatOfTheShorter) {
  for (const size_t size : std::vector<size_t>{1'000, 65'536, 5'000'000}) {
    const std::string text(size, 'x');
    EXPECT_EQ(Digest(text + "more", size), Digest(text)) << size;
  }
}

TEST_F(StreamDigestTest, FilesDoNotMatterOnlyTheirText) {
  const std::string whole = Digest("abcdef");
  std::ofstream(path_ + "1", std::ios::binary) << "abc";
  std::ofstream(path_ + "2", std::ios::binary) << "def";
  EXPECT_EQ(SampledDigest(TokenStream({path_ + "1", path_ + "2"}), 6), whole);
  std::filesystem::remove(path_ + "1");
  std::filesystem::remove(path_ + "2");
}

// Checkpoints of all versions have it.
TEST_F(StreamDigestTest, DigestOfTextNeverChanges) {
  EXPECT_EQ(Digest("Once upon a time"), "7ad05df6dbc4042c");
}

class TokenDigestTest : public DataFolderTest {};

TEST_F(TokenDigestTest, SameIdsInAnyWidthAndFormatAreTheSameData) {
  const auto stream = [](const std::string& path, TokenDtype dtype, int64_t offset) {
    const TokenPart part{std::make_shared<const DataFile>(path), dtype, offset, 3};
    return TokenStream({part}, {.is_text = false, .id_limit = 1000});
  };
  const std::string narrow =
      SampledDigest(stream(Write("a", LlmcFile({1, 2, 300})), TokenDtype::kUint16, 1024), 3);
  EXPECT_EQ(
      SampledDigest(stream(Write("b", StoredList<int32_t>({1, 2, 300})), TokenDtype::kInt32, 0), 3),
      narrow);
  EXPECT_NE(
      SampledDigest(stream(Write("c", StoredList<int32_t>({1, 2, 301})), TokenDtype::kInt32, 0), 3),
      narrow);
}

}  // namespace
}  // namespace fsdprun::worker
