#include "formats/tokens/token_file_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsdprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TokenFileInfo Described() {
  TokenFileInfo info;
  info.dtype = TokenDtype::kUint16;
  info.tokens = 1'000'000'000'000;
  info.vocab_size = 50257;
  info.document_end = 50256;
  info.tokenizer = {"tokenizer.json", "0123456789abcdef"};
  info.sources = {"a.txt", "b \"c\".jsonl"};
  return info;
}

std::string ErrorOf(const Json& document) {
  try {
    ParseTokenFileInfo(document, "a.bin.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenFileInfoTest, WrongFieldsAreNamed) {
  const Json good = Json::parse(FormatTokenFileInfo(Described()));
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"/format", "fsdprun-tokens-2"},
      {"/format", 1},
      {"/dtype", "float32"},
      {"/dtype", nullptr},
      {"/tokens", -1},
      {"/tokens", 1.5},
      {"/tokens", 18446744073709551615ULL},
      {"/vocab_size", 0},
      {"/vocab_size", int64_t{1} << 40},
      {"/document_end", 50257},
      {"/document_end", "50256"},
      {"/tokenizer", "bytes"},
      {"/tokenizer/kind", "words"},
      {"/tokenizer/digest", "0123456789ABCDEF"},
      {"/tokenizer/digest", "0123"},
      {"/tokenizer/more", 1},
      {"/sources", "a.txt"},
      {"/sources/0", 1},
      {"/more", 1},
  };
  for (const auto& [pointer, value] : wrong) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    std::string name =
        pointer.substr(1, pointer.ends_with("/0") ? pointer.size() - 3 : pointer.npos);
    std::replace(name.begin(), name.end(), '/', '.');
    EXPECT_THAT(ErrorOf(bad), HasSubstr("a.bin.json: " + name)) << bad.dump();
  }
  EXPECT_THAT(ErrorOf(Json::array()), HasSubstr("a.bin.json: expected a JSON object"));
}

TEST(TokenFileInfoTest, MissingKeysAreNamed) {
  const Json good = Json::parse(FormatTokenFileInfo(Described()));
  for (const auto& [key, value] : good.items()) {
    Json bad = good;
    bad.erase(key);
    EXPECT_THAT(ErrorOf(bad), AllOf(HasSubstr("a.bin.json: " + key), HasSubstr("is missing")));
  }
}

TEST(TokenFileInfoTest, WhatIsWrittenIsRead) {
  TokenFileInfo info = Described();
  EXPECT_EQ(ParseTokenFileInfo(Json::parse(FormatTokenFileInfo(info)), ""), info);
  info.document_end.reset();
  info.dtype = TokenDtype::kInt32;
  info.sources.clear();
  EXPECT_EQ(ParseTokenFileInfo(Json::parse(FormatTokenFileInfo(info)), ""), info);
}

TEST(TokenFileInfoTest, ASourceThatIsNotTextIsStillWritten) {
  TokenFileInfo info = Described();
  info.sources = {"a\xff.txt"};
  EXPECT_EQ(ParseTokenFileInfo(Json::parse(FormatTokenFileInfo(info)), "").sources[0],
            "a\xef\xbf\xbd.txt");
}

TEST(TokenDtypeTest, NamesAndSizesBelongTogether) {
  TokenDtype dtype = TokenDtype::kInt8;
  EXPECT_FALSE(FindTokenDtype("float32", dtype));
  EXPECT_EQ(dtype, TokenDtype::kInt8);
  for (const TokenDtype each :
       {TokenDtype::kUint8, TokenDtype::kInt8, TokenDtype::kUint16, TokenDtype::kInt16,
        TokenDtype::kUint32, TokenDtype::kInt32, TokenDtype::kInt64}) {
    EXPECT_TRUE(FindTokenDtype(TokenDtypeName(each), dtype));
    EXPECT_EQ(dtype, each);
    const int value_bits =
        8 * static_cast<int>(TokenBytes(each)) - (TokenDtypeName(each).starts_with("u") ? 0 : 1);
    EXPECT_EQ(LargestTokenId(each) >> (value_bits - 1), 1) << TokenDtypeName(each);
  }
}

}  // namespace
}  // namespace fsdprun
