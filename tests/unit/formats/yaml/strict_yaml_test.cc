#include "formats/yaml/strict_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Refusal(const std::string& text) {
  try {
    ParseStrictYaml(text, "f.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(StrictYamlTest, WhatIsNotPlainIsRefusedWithItsLine) {
  EXPECT_EQ(Refusal("a: 1\nb: *x\n"), "f.yaml:2: the referenced anchor is not defined");
  EXPECT_THAT(Refusal("a: 1\nb: &x 2\n"), StartsWith("f.yaml:2: an anchor"));
  EXPECT_THAT(Refusal("a: 1\n\nb: !!python/object/apply:os.system [touch x]\n"),
              StartsWith("f.yaml:3: a tag (tag:yaml.org,2002:python/object/apply:os.system)"));
  EXPECT_THAT(Refusal("a: !!int 1\n"), StartsWith("f.yaml:1: a tag"));
  EXPECT_THAT(Refusal("a: !mine {b: 1}\n"), StartsWith("f.yaml:1: a tag"));
  EXPECT_EQ(Refusal("a: 1\nb: 2\na: 3\n"), "f.yaml:3: the key a is there twice, first in line 1");
  EXPECT_EQ(Refusal("a:\n  b: 1\n  \"b\": 1\n"),
            "f.yaml:3: the key b is there twice, first in line 2");
  EXPECT_THAT(Refusal("? [a]\n: 1\n"), StartsWith("f.yaml:1: a list or a map as a key"));
  EXPECT_EQ(Refusal("? {a: 1}\n: 1\n"), "f.yaml:1: a list or a map as a key: expected a text");
  EXPECT_EQ(Refusal("~: 1\n"), "f.yaml:1: a key without a text");
  EXPECT_EQ(Refusal("a: 1\n---\nb: 1\n"), "f.yaml:2: a second document begins here: expected one");
}

TEST(StrictYamlTest, BadSyntaxIsRefusedWithItsLine) {
  EXPECT_THAT(Refusal("a: 1\nb: [1, 2\n"), StartsWith("f.yaml:"));
  EXPECT_THAT(Refusal("a: 1\n\tb: 2\n"), StartsWith("f.yaml:2: "));
  EXPECT_THAT(Refusal("a: 1\n- b\n"), StartsWith("f.yaml:2: "));
  EXPECT_THAT(Refusal(std::string("a: 1\nb: \0\n", 10)), StartsWith("f.yaml:2: a byte"));
  EXPECT_THAT(Refusal("\xff\xfe"
                      "a"),
              StartsWith("f.yaml:1: a byte"));
}

TEST(StrictYamlTest, TheSizeOfWhatIsReadIsBounded) {
  // Each line would be nine of the line before.
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char name = 'b'; name < 'k'; ++name) {
    const std::string before(1, static_cast<char>(name - 1));
    bomb += std::string(1, name) + ": &" + name + " [*" + before + ", *" + before + "]\n";
  }
  EXPECT_THAT(Refusal(bomb), StartsWith("f.yaml:1: an anchor"));
  EXPECT_THAT(Refusal("a: " + std::string(kYamlBytesMax, 'x')), HasSubstr("larger than"));
  EXPECT_THAT(Refusal(std::string(17, '[') + std::string(17, ']')),
              StartsWith("f.yaml:1: nested deeper than 16"));
  EXPECT_THAT(Refusal(std::string(100'000, '[')), StartsWith("f.yaml:1: "));
  EXPECT_THAT(Refusal(std::string(100'000, '{')), StartsWith("f.yaml:1: "));
  std::string deep;
  for (int i = 0; i < 500; ++i) {
    deep += std::string(i, ' ') + "a:\n";
  }
  EXPECT_THAT(Refusal(deep), StartsWith("f.yaml:17: nested deeper than 16"));
}

TEST(StrictYamlTest, DocumentsAreRead) {
  const YamlNode root = ParseStrictYaml(
      "# a comment\nname: plain text\n\nquoted: 'no'\nlist:\n- 1\n- two\ninner: {a: ~, b: }\n",
      "f");
  ASSERT_EQ(root.kind, YamlNode::Kind::kMap);
  ASSERT_EQ(root.fields.size(), 4u);
  EXPECT_EQ(root.fields[0].key, "name");
  EXPECT_EQ(root.fields[0].line, 2);
  EXPECT_EQ(root.fields[0].value.text, "plain text");
  EXPECT_FALSE(root.fields[0].value.is_quoted);
  EXPECT_EQ(root.fields[1].line, 4);
  EXPECT_TRUE(root.fields[1].value.is_quoted);
  ASSERT_EQ(root.fields[2].value.items.size(), 2u);
  EXPECT_EQ(root.fields[2].value.items[1].text, "two");
  ASSERT_EQ(root.fields[3].value.fields.size(), 2u);
  EXPECT_EQ(root.fields[3].value.fields[0].value.kind, YamlNode::Kind::kNull);
  EXPECT_EQ(ParseStrictYaml("", "f").kind, YamlNode::Kind::kNull);
}

YamlNode Scalar(const std::string& text) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.text = text;
  return node;
}

TEST(StrictYamlTest, ScalarsAreWhatPyYamlTakesThemFor) {
  for (const char* yes : {"true", "True", "TRUE", "yes", "Yes", "on"}) {
    EXPECT_EQ(Scalar(yes).AsBool(), true) << yes;
  }
  for (const char* no : {"false", "no", "NO", "off", "Off"}) {
    EXPECT_EQ(Scalar(no).AsBool(), false) << no;
  }
  for (const char* neither : {"", "tRUE", "1", "y", "n"}) {
    EXPECT_EQ(Scalar(neither).AsBool(), std::nullopt) << neither;
  }
  EXPECT_EQ(Scalar("-12").AsInteger(), -12);
  EXPECT_EQ(Scalar("+3").AsInteger(), 3);
  EXPECT_EQ(Scalar("9223372036854775807").AsInteger(), INT64_MAX);
  EXPECT_EQ(Scalar("-9223372036854775808").AsInteger(), INT64_MIN);
  EXPECT_EQ(Scalar("0").AsInteger(), 0);
  EXPECT_EQ(Scalar("1_000_000").AsInteger(), 1'000'000);
  EXPECT_EQ(Scalar("-0x1F").AsInteger(), -31);
  EXPECT_EQ(Scalar("0b11").AsInteger(), 3);
  EXPECT_EQ(Scalar("010").AsInteger(), 8);
  for (const char* none : {"", "+", "-", "+-3", "1.0", "1e3", "9223372036854775808", " 1", "0x",
                           "_1", "08", "0b2", "0x-1", "1:30", "--1"}) {
    EXPECT_EQ(Scalar(none).AsInteger(), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace fsdprun
