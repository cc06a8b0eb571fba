#include "worker/tokenizers/byte_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

/// "a" to "d" are 0 to 3.
BytePairVocabulary Letters() {
  BytePairVocabulary vocabulary;
  for (uint32_t i = 0; i < 4; ++i) {
    vocabulary.tokens.emplace_back(std::string(1, static_cast<char>('a' + i)), i);
  }
  return vocabulary;
}

std::vector<uint32_t> Encode(const BytePairs& pairs, const std::string& word) {
  BytePairs::Scratch scratch;
  std::vector<uint32_t> ids;
  EXPECT_EQ(pairs.Encode(word, scratch, ids), word.size());
  return ids;
}

/// Merges one after the other, the first of each from the left: slow and plain.
std::vector<uint32_t> EncodePlainly(const BytePairVocabulary& vocabulary, const std::string& word) {
  std::vector<uint32_t> ids;
  for (const char c : word) {
    ids.push_back(static_cast<uint32_t>(c - 'a'));
  }
  for (;;) {
    size_t best_rule = vocabulary.merges.size();
    size_t best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (size_t rule = 0; rule < best_rule; ++rule) {
        if (vocabulary.merges[rule].left == ids[at] &&
            vocabulary.merges[rule].right == ids[at + 1]) {
          best_rule = rule;
          best_at = at;
        }
      }
    }
    if (best_rule == vocabulary.merges.size()) {
      return ids;
    }
    ids[best_at] = vocabulary.merges[best_rule].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BytePairsTest, AByteWithoutTokenIsReported) {
  const BytePairs pairs(Letters());
  BytePairs::Scratch scratch;
  std::vector<uint32_t> ids = {7};
  EXPECT_EQ(pairs.Encode("abxd", scratch, ids), 2U);
  EXPECT_THAT(ids, ElementsAre(7));
}

TEST(BytePairsTest, TheFirstRuleIsDoneFirstFromTheLeft) {
  BytePairVocabulary vocabulary = Letters();
  vocabulary.merges = {{1, 2, 10}, {0, 1, 11}, {0, 0, 12}, {12, 0, 13}};
  const BytePairs pairs(vocabulary);
  EXPECT_THAT(Encode(pairs, "abc"), ElementsAre(0, 10));
  EXPECT_THAT(Encode(pairs, "abb"), ElementsAre(11, 1));
  EXPECT_THAT(Encode(pairs, "aaaa"), ElementsAre(12, 12));
  EXPECT_THAT(Encode(pairs, "aaa"), ElementsAre(13));
}

TEST(BytePairsTest, WholeWordsComeBeforeMergesWhereThatIsAsked) {
  BytePairVocabulary vocabulary = Letters();
  vocabulary.tokens.emplace_back("abc", 20);
  vocabulary.merges = {{0, 1, 11}};
  EXPECT_THAT(Encode(BytePairs(vocabulary), "abc"), ElementsAre(11, 2));
  vocabulary.ignores_merges = true;
  EXPECT_THAT(Encode(BytePairs(vocabulary), "abc"), ElementsAre(20));
  EXPECT_THAT(Encode(BytePairs(vocabulary), "abcd"), ElementsAre(11, 2, 3));
}

TEST(BytePairsTest, RandomRulesGiveWhatPlainMergingGives) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    BytePairVocabulary vocabulary = Letters();
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
    for (uint32_t id = 4; id < 16; ++id) {
      const auto left = static_cast<uint32_t>(random() % id);
      const auto right = static_cast<uint32_t>(random() % id);
      if (known.emplace(std::pair(left, right), id).second) {
        vocabulary.merges.push_back({left, right, id});
      }
    }
    const BytePairs pairs(vocabulary);
    BytePairs::Scratch scratch;
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (size_t length = 1 + random() % 100; length > 0; --length) {
        word += static_cast<char>('a' + random() % 4);
      }
      // Once computed, and once from what was kept.
      for (int again = 0; again < 2; ++again) {
        std::vector<uint32_t> ids;
        pairs.Encode(word, scratch, ids);
        EXPECT_THAT(ids, ElementsAreArray(EncodePlainly(vocabulary, word))) << word;
      }
    }
  }
}

TEST(BytePairsTest, AVeryLongWordIsEncoded) {
  BytePairVocabulary vocabulary = Letters();
  uint32_t last = 0;
  for (uint32_t id = 10; id < 20; ++id) {
    vocabulary.merges.push_back({last, last, id});
    last = id;
  }
  EXPECT_EQ(Encode(BytePairs(vocabulary), std::string(1 << 18, 'a')).size(), 256U);
}

}  // namespace
}  // namespace fsdprun::worker
