#include "worker/tokenizers/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;

AddedToken Token(uint32_t id, const std::string& content) {
  AddedToken token;
  token.id = id;
  token.content = content;
  return token;
}

/// The parts: text as it is, tokens as <id:text>.
std::vector<std::string> Divided(const std::vector<AddedToken>& tokens, const std::string& text) {
  RegexScratch scratch;
  scratch.SetTextBytes(text.size());
  std::vector<std::string> parts;
  for (const TextPart& part : AddedTokens(tokens).Divide(text, scratch)) {
    const std::string bytes = text.substr(part.begin, part.end - part.begin);
    parts.push_back(
        part.id == TextPart::kNoToken ? bytes : "<" + std::to_string(part.id) + ":" + bytes + ">");
  }
  return parts;
}

TEST(AddedTokensTest, OfSeveralAtOnePlaceTheLongestIsFound) {
  const std::vector<AddedToken> tokens = {Token(1, "<a"), Token(2, "<a><b>"), Token(3, "<a>"),
                                          Token(4, "b"), Token(5, "<ac")};
  EXPECT_THAT(Divided(tokens, "x<a><c<ab<a><b>"),
              ElementsAre("x", "<3:<a>>", "<c", "<1:<a>", "<4:b>", "<2:<a><b>>"));
  EXPECT_THAT(Divided(tokens, "<ab"), ElementsAre("<1:<a>", "<4:b>"));
  EXPECT_THAT(Divided(tokens, ""), ElementsAre());
  EXPECT_THAT(Divided({}, "text"), ElementsAre("text"));
}

TEST(AddedTokensTest, WhiteSpaceAroundBelongsToWhatStripsIt) {
  AddedToken left = Token(1, "[l]");
  left.strips_left = true;
  AddedToken right = Token(2, "[r]");
  right.strips_right = true;
  EXPECT_THAT(
      Divided({left, right}, "a \u3000[l] b[r] \n[l] [r] c"),
      ElementsAre("a", "<1: \u3000[l]>", " b", "<2:[r] \n>", "<1:[l]>", " ", "<2:[r] >", "c"));
}

TEST(AddedTokensTest, ASingleWordStandsAlone) {
  AddedToken token = Token(1, "cat");
  token.is_single_word = true;
  EXPECT_THAT(Divided({token}, "cat cats, (cat) äcat cat_ cat"),
              ElementsAre("<1:cat>", " cats, (", "<1:cat>", ") äcat cat_ ", "<1:cat>"));
}

}  // namespace
}  // namespace fsdprun::worker
