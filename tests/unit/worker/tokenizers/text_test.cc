#include <gmock/gmock.h>
#include <gtest/gtest.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <cstdlib>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/tokenizers/byte_level.h"
#include "worker/tokenizers/nfc.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

TEST(Utf8Test, TheFirstInvalidByteIsFound) {
  const std::vector<std::pair<std::string, size_t>> cases = {
      {"", 0},
      {"plain text, longer than eight bytes", 35},
      {"ä€😀\0z", 9},
      {"12345678\xff", 8},
      {"1234567\xc3", 7},
      {"a\xc0\x80", 1},          // overlong
      {"a\xed\xa0\x80", 1},      // a surrogate
      {"a\xf4\x90\x80\x80", 1},  // beyond U+10FFFF
      {"a\xe2\x82", 1},
      {"\x80", 0},
  };
  for (const auto& [text, valid] : cases) {
    EXPECT_EQ(ValidUtf8Bytes(text), valid) << testing::PrintToString(text);
  }
  EXPECT_EQ(ValidUtf8Bytes(std::string("\0a", 2)), 2U);
}

// What Python's bytes.decode("utf-8", "replace") makes of them.
TEST(Utf8Test, InvalidBytesAreReplacedAsPythonDoes) {
  const std::string r = "\xef\xbf\xbd";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xff\xfe"
       "b",
       "a" + r + r + "b"},
      {"\xe2\x82", r},
      {"\xe2\x82x", r + "x"},
      {"\xf0\x9f\x98", r},
      {"\xf0\x9f\x98\xf0", r + r},
      {"\xed\xa0\x80", r + r + r},
      {"\xc0\x80", r + r},
      {"\xe0\x80\x80", r + r + r},
      {"\xf4\x90\x80\x80", r + r + r + r},
      {"\xf5\x80", r + r},
      {"\xc3", r},
      {"ok", "ok"},
  };
  for (const auto& [text, replaced] : cases) {
    EXPECT_EQ(ReplaceInvalidUtf8(text), replaced) << testing::PrintToString(text);
    EXPECT_EQ(ValidUtf8Bytes(replaced), replaced.size());
  }
}

TEST(NfcTest, CharactersAreComposedAndMarksOrdered) {
  EXPECT_EQ(ToNfc("e\u0301"), "\u00e9");
  EXPECT_EQ(ToNfc("a\u0301\u0323\nx"), "\u1ea1\u0301\nx");
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(ToNfc("\u212b"), "\u00c5");
  EXPECT_EQ(ToNfc(std::string("a\0e\u0301", 5)), std::string("a\0\u00e9", 4));
  EXPECT_EQ(ToNfc(""), "");
}

TEST(NfcTest, WhatIsKeptInPlaceParts) {
  // U+0898 came with Unicode 14: tokenizers takes it for a letter without class.
  EXPECT_EQ(ToNfc("a\u0898\u0301"), "a\u0898\u0301");
  EXPECT_EQ(ToNfc("e\u0301\u0898e\u0301"), "\u00e9\u0898\u00e9");
  EXPECT_EQ(ToNfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(ByteLevelTest, EveryByteHasACharacterOfItsOwn) {
  std::set<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const std::string token = TokenOfBytes(bytes);
    EXPECT_EQ(ValidUtf8Bytes(token), token.size());
    EXPECT_EQ(BytesOfToken(token), bytes);
    tokens.insert(token);
  }
  EXPECT_EQ(tokens.size(), 256U);
  EXPECT_EQ(TokenOfBytes(" a\n\xc3"), "ĠaĊÃ");
  EXPECT_FALSE(BytesOfToken(" ").has_value());
  EXPECT_FALSE(BytesOfToken("a漢").has_value());
}

TEST(UnicodeVersionTest, LibrariesAreNotNewerThanTheListsAllowFor) {
  // Note [Unicode versions]: what a library knows beyond Unicode 16 would become letters here.
  char pcre2[64] = "";
  ASSERT_GT(pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, pcre2), 0);
  EXPECT_LE(std::atoi(pcre2), 16) << pcre2;
  EXPECT_LE(std::atoi(utf8proc_unicode_version()), 16) << utf8proc_unicode_version();
}

}  // namespace
}  // namespace fsdprun::worker
