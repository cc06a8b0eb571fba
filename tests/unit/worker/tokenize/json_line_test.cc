#include "worker/tokenize/json_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/json/strict_json.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace fsdprun::worker {
namespace {

using checkpoint::MessageOf;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Refusal(std::string_view line) {
  return MessageOf<ConfigError>([&] { ReadJsonLine(line, "text", false, "in:8"); });
}

std::string TextOf(std::string_view line) { return ReadJsonLine(line, "text", false, "in:8").text; }

TEST(ReadJsonLineTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Refusal("{"), HasSubstr("in:8:2: not valid JSON: "));
  EXPECT_THAT(Refusal(R"({"text": "a"} x)"), HasSubstr("in:8:15: not valid JSON"));
  EXPECT_THAT(Refusal(std::string(R"({"text": "a"})") + '\0'), HasSubstr("in:8:14: not valid"));
  EXPECT_THAT(Refusal("[1]"), HasSubstr("in:8: a list: expected a JSON object"));
  EXPECT_THAT(Refusal("\"text\""), HasSubstr("in:8: a text: expected a JSON object"));
  EXPECT_THAT(Refusal(R"({"body": "a", "more": {"text": "b"}})"),
              HasSubstr("in:8: the key \"text\" is missing; name the one"));
  EXPECT_THAT(Refusal(R"({"text": 5})"), HasSubstr("in:8: text = 5: expected a text"));
  EXPECT_THAT(Refusal(R"({"text": ["a"]})"), HasSubstr("in:8: text = a list: expected a text"));
  EXPECT_THAT(Refusal(R"({"text": "a", "text": "b"})"), HasSubstr("\"text\" occurs twice"));
  EXPECT_THAT(Refusal("{\"text\": \"" + std::string(5000, 'x')),
              AllOf(HasSubstr("missing closing quote"), Not(HasSubstr("xxx"))));
}

TEST(ReadJsonLineTest, OtherKeysNeedOnlyBeWhatPythonWrites) {
  EXPECT_EQ(TextOf(R"({"n": NaN, "i": [-Infinity, 1e400, -1e-400], "text": "a"})"), "a");
  EXPECT_EQ(TextOf(R"({"half": "\ud83d", "\udc00": "\\\ud83d", "text": "\\\ud83d\ude00"})"),
            "\\\xf0\x9f\x98\x80");
  EXPECT_EQ(TextOf(R"({"twice": 1, "twice": {"text": 5}, "text": "a"})"), "a");
  EXPECT_THAT(Refusal(R"({"n": nan, "text": "a"})"), HasSubstr("not valid JSON"));
}

TEST(ReadJsonLineTest, HalfASurrogatePairIsReplacedWhereThatIsAsked) {
  constexpr char kLine[] = R"({"text": "a\uD83Dz\ude00"})";
  EXPECT_THAT(Refusal(kLine), AllOf(HasSubstr("in:8: text has half a surrogate pair"),
                                    HasSubstr("--replace-invalid-utf8")));
  const JsonLineText replaced = ReadJsonLine(kLine, "text", true, "in:8");
  EXPECT_EQ(replaced.text, "a\xef\xbf\xbdz\xef\xbf\xbd");
  EXPECT_TRUE(replaced.is_replaced);
  EXPECT_FALSE(ReadJsonLine(R"({"a": "\ud83d", "text": "b"})", "text", true, "").is_replaced);
}

TEST(ReadJsonLineTest, NullIsNoText) { EXPECT_EQ(TextOf(R"({"text": null})"), ""); }

TEST(ReadJsonLineTest, KeysAndDepthAreNotLimited) {
  // Quadratic in the keys, or recursive, it would end the test.
  std::string line = "{";
  for (int i = 0; i < 200'000; ++i) {
    line += "\"" + std::to_string(i) + "\":0,";
  }
  line += "\"deep\":" + std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_EQ(TextOf(line + ",\"text\":\"a\"}"), "a");
}

}  // namespace
}  // namespace fsdprun::worker
