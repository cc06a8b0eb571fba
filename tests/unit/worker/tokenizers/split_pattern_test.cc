#include "worker/tokenizers/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "formats/json/strict_json.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "worker/tokenizers/split_regex.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MessageOf;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Of tiktoken's gpt2, cl100k (Llama 3), Qwen2 and o200k, and of DeepSeek.
constexpr const char* kWellKnown[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([一-龥぀-ゟ゠-ヿ]+)",
};

std::vector<std::string> PartsOf(const std::string& pattern, const std::string& text) {
  const SplitRegex regex(pattern, "test");
  RegexScratch scratch;
  scratch.SetTextBytes(text.size());
  std::vector<std::string> parts;
  SplitRegex::Match match;
  for (size_t at = 0; regex.Find(text, at, scratch, match); at = match.end) {
    parts.push_back(text.substr(match.begin, match.end - match.begin));
  }
  return parts;
}

TEST(SplitPatternTest, WhatMeansSomethingElseElsewhereIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(\w+)", R"(\w)"},
      {R"(a\b)", R"(\b)"},
      {R"(\h)", R"(\h)"},
      {R"(a$)", "at its byte 1, $"},
      {R"(^a)", "at its byte 0, ^"},
      {R"((a)\1)", R"(\1)"},
      {R"([a[bc]])", "a class within a class"},
      {R"([a&&b])", "a class within a class"},
      {R"([[:alpha:]])", "a class within a class"},
      {R"([])", "a class of nothing"},
      {R"([\S])", "a negative class within a class"},
      {R"([a-\d])", "a range to a class"},
      {R"([\d-a])", "a - that may begin a range"},
      {R"([z-a])", "a range that ends before it begins"},
      {R"([a)", "an end before the ]"},
      {R"(a{2}?)", "a repetition of a repetition"},
      {R"(a{2,3}+)", "a repetition of a repetition"},
      {R"(a++?)", "a repetition of a repetition"},
      {R"(a{x})", "a { that begins no repetition"},
      {R"(a{3,2})", "a repetition of more than its most"},
      {R"(a{1001})", "a number above 1000"},
      {R"((?=a)*)", "an assertion that is repeated"},
      {R"((?i)a)", "a group of this kind"},
      {R"((?<name>a))", "a group of this kind"},
      {R"((?#a))", "a group of this kind"},
      {R"((a)", "an end before the )"},
      {R"(a))", "a ) without its ("},
      {R"(*a)", "at its byte 0, *"},
      {R"(\p{Greek})", "the property \"Greek\""},
      {R"(\pL)", "a property without { }"},
      {R"(\p{L)", "a property without { }"},
      {R"(\x{110000})", "a number that is no character"},
      {R"(\xff)", "a number that is no character"},
      {R"(\ud800)", "a number that is no character"},
      {R"((?i:[a-z]))", "a class of characters within (?i:"},
      {R"((?i:ä))", "a character beyond ASCII within (?i:"},
      {R"((?i:s(?:a)ass))", "\"ss\" within (?i:"},
      {"\xff", "what is not UTF-8"},
      {"a\\", "which is not supported"},
      {std::string(201, '(') + "a" + std::string(201, ')'), "more than 100 groups"},
  };
  for (const auto& [pattern, what] : cases) {
    EXPECT_THAT(
        MessageOf<ConfigError>([&text = pattern] { TranslateSplitPattern(text, "f: model.x"); }),
        AllOf(HasSubstr("f: model.x: the pattern"), HasSubstr(what)))
        << pattern;
  }
  EXPECT_THAT(MessageOf<ConfigError>(
                  [&] { TranslateSplitPattern(std::string(20'000, 'a'), "f: model.x"); }),
              HasSubstr("expected at most"));
}

TEST(SplitPatternTest, PatternsOfWellKnownModelsAreUnderstood) {
  for (const char* pattern : kWellKnown) {
    EXPECT_NO_THROW(SplitRegex(pattern, "test")) << pattern;
  }
}

TEST(SplitPatternTest, APatternKeepsItsMeaning) {
  EXPECT_THAT(PartsOf(kWellKnown[0], "it's  a\tdog\n\n"),
              ElementsAre("it", "'s", " ", " a", "\t", "dog", "\n\n"));
  EXPECT_THAT(PartsOf(kWellKnown[1], "IT'S 12345!\r\n  x"),
              ElementsAre("IT", "'S", " ", "123", "45", "!\r\n", " ", " x"));
  EXPECT_THAT(PartsOf(R"(\x41|\x{1F600}|\u00e4|\.|[\]\-a-c])", "A😀ä.]-b-"),
              ElementsAre("A", "😀", "ä", ".", "]", "-", "b", "-"));
  EXPECT_THAT(PartsOf(R"(a{,2}b|c{2}|d{1,}?|e++|\D)", "aabccdde"),
              ElementsAre("aab", "cc", "d", "d", "e"));
  EXPECT_THAT(PartsOf(R"((?<=a)b|(?<!a)c|(?>d+)|\P{L}|.)", "abcac1\nd"),
              ElementsAre("a", "b", "c", "a", "c", "1", "\n", "d"));
}

TEST(SplitPatternTest, WhiteSpaceIsUnicodes) {
  // U+180E is none since Unicode 6.3; PCRE2's own \s has it.
  EXPECT_THAT(PartsOf(R"(\s)", "a\u180e\u3000\u0085\u2029b\x1c"), testing::SizeIs(3));
  EXPECT_THAT(PartsOf(R"(\S)", "a\u180e\u3000\u0085\u2029b\x1c"), testing::SizeIs(4));
}

TEST(SplitPatternTest, LettersOfNewerUnicodeAreLetters) {
  // Of Unicode 15 and 16: an ideograph of extension H, a Garay capital, a Kawi letter.
  for (const char* letter : {"\U00031350", "\U00010d50", "\U00011f04"}) {
    EXPECT_THAT(PartsOf(R"(\p{L})", letter), ElementsAre(letter));
    EXPECT_THAT(PartsOf(R"([^\s\p{L}\p{N}])", letter), testing::IsEmpty());
  }
  EXPECT_THAT(PartsOf(R"(\p{Han}+)", "漢字\U00031350かな"), ElementsAre("漢字\U00031350"));
}

TEST(SplitPatternTest, AQuotedTextMatchesItself) {
  const std::string text = R"(a.b*c[d]{1}\e(f)|^$ -ä)";
  EXPECT_THAT(PartsOf(QuoteForPattern(text), "x" + text + "y"), ElementsAre(text));
}

TEST(SplitRegexTest, APatternThatMatchesNothingIsRefused) {
  for (const char* pattern : {"a*", "", "a|", "(?=a)"}) {
    EXPECT_THAT(MessageOf<ConfigError>([&] { SplitRegex(pattern, "f: x"); }),
                AllOf(HasSubstr("f: x"), HasSubstr("also matches no text at all")))
        << pattern;
  }
}

TEST(SplitRegexTest, APatternThatTriesEverythingEndsWithAnError) {
  const SplitRegex regex("(?:a+)+b", "f: model.x");
  RegexScratch scratch;
  // Without the last b it would see at once that there is none.
  const std::string text = "c" + std::string(40, 'a') + "cb";
  scratch.SetTextBytes(text.size());
  SplitRegex::Match match;
  EXPECT_THAT(MessageOf<ConfigError>([&] { regex.Find(text, 1, scratch, match); }),
              AllOf(HasSubstr("from its byte 1"), HasSubstr("(?:a+)+b"), HasSubstr("f: model.x")));
}

TEST(SplitRegexTest, LongRunsAreOneMatch) {
  for (const char* run : {" ", "a", "\n", "!", "漢"}) {
    std::string text;
    while (text.size() < 1'000'000) {
      text += run;
    }
    const std::vector<std::string> parts = PartsOf(kWellKnown[1], text);
    EXPECT_THAT(parts, ElementsAre(text));
  }
}

}  // namespace
}  // namespace fsdprun::worker
