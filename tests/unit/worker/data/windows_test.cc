#include "worker/data/windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/worker/data/data_folder.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;

constexpr int64_t kNo = kIgnoredTarget;

class WindowsTest : public DataFolderTest {
 protected:
  std::shared_ptr<const TokenStream> Stream(const std::vector<uint16_t>& tokens,
                                            TokenFacts facts = {}) const {
    return StreamOf(Path("tokens"), tokens, std::move(facts));
  }
};

/// {inputs, targets}; proves that the number of targets that count is right.
std::vector<std::vector<int64_t>> ReadWindow(const Windows& windows, int64_t window) {
  const auto length = static_cast<size_t>(windows.seq_len());
  std::vector<std::vector<int64_t>> rows(2, std::vector<int64_t>(length, -7));
  const int64_t counted = windows.Read(window, rows[0].data(), rows[1].data());
  EXPECT_EQ(counted, std::count_if(rows[1].begin(), rows[1].end(),
                                   [](int64_t target) { return target != kNo; }));
  return rows;
}

TEST_F(WindowsTest, TargetsAreTheNextTokens) {
  const Windows windows(Stream({1, 2, 3, 4, 5, 6, 7, 8, 9}), 4);
  ASSERT_EQ(windows.count(), 2);
  EXPECT_FALSE(windows.may_ignore_targets());
  EXPECT_THAT(ReadWindow(windows, 0),
              ElementsAre(ElementsAre(1, 2, 3, 4), ElementsAre(2, 3, 4, 5)));
  EXPECT_THAT(ReadWindow(windows, 1),
              ElementsAre(ElementsAre(5, 6, 7, 8), ElementsAre(6, 7, 8, 9)));
}

TEST_F(WindowsTest, FirstTokenOfADocumentIsNoTargetWhereAnIndexSaysSo) {
  // The documents are 1 2 3 | 4 | 5 6 7 8 9.
  const Windows windows(Stream({1, 2, 3, 4, 5, 6, 7, 8, 9}, {.document_ends = {3, 4, 9}}), 4,
                        Documents::kMask);
  EXPECT_TRUE(windows.may_ignore_targets());
  EXPECT_THAT(ReadWindow(windows, 0),
              ElementsAre(ElementsAre(1, 2, 3, 4), ElementsAre(2, 3, kNo, kNo)));
  EXPECT_THAT(ReadWindow(windows, 1),
              ElementsAre(ElementsAre(5, 6, 7, 8), ElementsAre(6, 7, 8, 9)));
}

TEST_F(WindowsTest, FirstTokenBehindADocumentEndIsNoTarget) {
  const Windows windows(Stream({1, 2, 0, 4, 0, 6, 7, 0, 9}, {.document_end = 0}), 4,
                        Documents::kMask);
  EXPECT_THAT(ReadWindow(windows, 0),
              ElementsAre(ElementsAre(1, 2, 0, 4), ElementsAre(2, 0, kNo, 0)));
  EXPECT_THAT(ReadWindow(windows, 1),
              ElementsAre(ElementsAre(0, 6, 7, 0), ElementsAre(kNo, 7, 0, kNo)));
}

TEST_F(WindowsTest, SeparateDocumentsFillTheirLastWindow) {
  // 1 2 3 4 5 6 | 7 | 8 9: five, none and one targets.
  const Windows windows(Stream({1, 2, 3, 4, 5, 6, 7, 8, 9}, {.document_ends = {6, 7, 9}}), 4,
                        Documents::kSeparate);
  ASSERT_EQ(windows.count(), 3);
  EXPECT_THAT(ReadWindow(windows, 0),
              ElementsAre(ElementsAre(1, 2, 3, 4), ElementsAre(2, 3, 4, 5)));
  EXPECT_THAT(ReadWindow(windows, 1),
              ElementsAre(ElementsAre(5, 0, 0, 0), ElementsAre(6, kNo, kNo, kNo)));
  EXPECT_THAT(ReadWindow(windows, 2),
              ElementsAre(ElementsAre(8, 0, 0, 0), ElementsAre(9, kNo, kNo, kNo)));
}

TEST_F(WindowsTest, SeparateDocumentsAreFoundByTheirEnds) {
  const Windows windows(Stream({1, 2, 0, 4, 0, 0, 7, 8}, {.document_end = 0}), 2,
                        Documents::kSeparate);
  ASSERT_EQ(windows.count(), 3);  // of 1 2 0 and 4 0 and 7 8; the third has one token
  EXPECT_THAT(ReadWindow(windows, 0), ElementsAre(ElementsAre(1, 2), ElementsAre(2, 0)));
  EXPECT_THAT(ReadWindow(windows, 1), ElementsAre(ElementsAre(4, 0), ElementsAre(0, kNo)));
  EXPECT_THAT(ReadWindow(windows, 2), ElementsAre(ElementsAre(7, 0), ElementsAre(8, kNo)));
}

TEST_F(WindowsTest, ScanForDocumentsCrossesItsPieces) {
  std::vector<uint16_t> tokens(150'000, 1);
  for (const size_t end : {65'534U, 65'535U, 65'536U, 131'071U}) {
    tokens[end] = 0;
  }
  const Windows windows(Stream(tokens, {.document_end = 0}), 200'000, Documents::kSeparate);
  EXPECT_EQ(windows.count(), 3);  // two of the five have one token
}

TEST_F(WindowsTest, EachFileOfTextIsADocument) {
  const auto stream = std::make_shared<const TokenStream>(
      std::vector<std::string>{Write("a", "abc"), Write("b", ""), Write("c", "de")});
  const Windows separate(stream, 4, Documents::kSeparate);
  ASSERT_EQ(separate.count(), 2);
  EXPECT_THAT(ReadWindow(separate, 0),
              ElementsAre(ElementsAre('a', 'b', 0, 0), ElementsAre('b', 'c', kNo, kNo)));
  EXPECT_THAT(ReadWindow(separate, 1),
              ElementsAre(ElementsAre('d', 0, 0, 0), ElementsAre('e', kNo, kNo, kNo)));
  const Windows masked(stream, 4, Documents::kMask);
  ASSERT_EQ(masked.count(), 1);
  EXPECT_THAT(ReadWindow(masked, 0),
              ElementsAre(ElementsAre('a', 'b', 'c', 'd'), ElementsAre('b', 'c', kNo, 'e')));
}

// All ways to cut nine tokens into documents, and all lengths of windows: every token of a document
// but its first is a target once, in order.
TEST_F(WindowsTest, SeparateDocumentsLoseAndRepeatNothing) {
  const TokenPart part{std::make_shared<const DataFile>(Write("a", "\n\v\f\r\x0e\x0f\x10\x11\x12")),
                       TokenDtype::kUint8, 0, 9};
  for (unsigned cuts = 0; cuts < 256; ++cuts) {
    std::vector<int64_t> ends;
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 9; ++i) {
      const bool is_first = i == 0 || (!ends.empty() && ends.back() == i);
      if (!is_first) {
        expected.push_back(10 + i);
      }
      if (i == 8 || (cuts >> i & 1) != 0) {
        ends.push_back(i + 1);
      }
    }
    const auto stream = std::make_shared<const TokenStream>(
        std::vector<TokenPart>{part}, TokenFacts{.is_text = false, .document_ends = ends});
    for (int64_t seq_len = 1; seq_len <= 5; ++seq_len) {
      const Windows windows(stream, seq_len, Documents::kSeparate);
      std::vector<int64_t> targets;
      for (int64_t window = 0; window < windows.count(); ++window) {
        const auto rows = ReadWindow(windows, window);
        for (size_t i = 0; i < rows[1].size(); ++i) {
          if (rows[1][i] != kNo) {
            EXPECT_EQ(rows[0][i] + 1, rows[1][i]);
            targets.push_back(rows[1][i]);
          }
        }
      }
      ASSERT_EQ(targets, expected) << cuts << " " << seq_len;
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
