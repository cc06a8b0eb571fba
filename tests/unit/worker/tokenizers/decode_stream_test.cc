#include "worker/tokenizers/decode_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker/tokenizers/small_model.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;

std::vector<std::string> PartsOf(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
  DecodeStream stream(tokenizer);
  std::vector<std::string> parts;
  for (const uint32_t id : ids) {
    parts.push_back(stream.Next(id));
  }
  parts.push_back(stream.End());
  return parts;
}

TEST(DecodeStreamTest, CharactersComeWhole) {
  const auto bytes = MakeByteTokenizer();
  EXPECT_THAT(PartsOf(*bytes, {'a', 0xc3, 0xa4, 'b'}), ElementsAre("a", "", "ä", "b", ""));
  EXPECT_THAT(PartsOf(*bytes, {0xf0, 0x9f, 0x99, 0x82}), ElementsAre("", "", "", "🙂", ""));
}

TEST(DecodeStreamTest, WhatIsNoCharacterComesAsItIs) {
  const auto bytes = MakeByteTokenizer();
  EXPECT_THAT(PartsOf(*bytes, {0xf0, 0x9f, 'a'}), ElementsAre("", "",
                                                              "\xf0\x9f"
                                                              "a",
                                                              ""));
  EXPECT_THAT(PartsOf(*bytes, {'a', 0xc3}), ElementsAre("a", "", "\xc3"));
  std::string all;
  for (const std::string& part : PartsOf(*bytes, std::vector<uint32_t>(9, 0xff))) {
    all += part;
  }
  EXPECT_EQ(all, std::string(9, '\xff'));
}

TEST(DecodeStreamTest, SpacesBetweenPiecesAreKept) {
  const auto tokenizer = MakeSentencePieceTokenizer(SmallModel(), "m.model");
  EXPECT_THAT(PartsOf(*tokenizer, {6, 6, 5, 6}), ElementsAre("a", " a", "b", " a", ""));
}

}  // namespace
}  // namespace fsdprun::worker
