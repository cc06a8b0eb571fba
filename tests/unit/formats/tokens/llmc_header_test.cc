#include "formats/tokens/llmc_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/formats/tokens/token_bytes.h"

namespace fsdprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;

LlmcHeader Parse(const std::string& file) {
  return ParseLlmcHeader(file.substr(0, 1024), static_cast<int64_t>(file.size()), "a.bin");
}
std::string LlmcRefusal(const std::string& file) {
  return RefusalOf([&] { Parse(file); });
}

TEST(LlmcHeaderTest, EveryTruncationIsRefused) {
  const std::string file = LlmcFile({1, 2, 3});
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(LlmcRefusal(file.substr(0, size)), HasSubstr("a.bin: ")) << size;
  }
  EXPECT_THAT(LlmcRefusal(file.substr(0, 1029)),
              AllOf(HasSubstr("header[2] = 3 at offset 8"), HasSubstr("1030 bytes"),
                    HasSubstr("it has 1029"), HasSubstr("copy or make it again")));
  EXPECT_THAT(LlmcRefusal(file + "x"), HasSubstr("it has 1031"));
}

TEST(LlmcHeaderTest, WrongFieldsAreNamed) {
  std::string file = LlmcFile({1, 2, 3});
  const auto with = [&](size_t index, int32_t value) {
    std::string changed = file;
    changed.replace(4 * index, 4, Stored(value));
    return LlmcRefusal(changed);
  };
  EXPECT_THAT(with(0, 7), HasSubstr("header[0] = 7 at offset 0: expected 20240520 or 20240801"));
  EXPECT_THAT(with(0, 20240328), HasSubstr("it holds a tokenizer for llm.c, not tokens"));
  EXPECT_THAT(with(1, 7), HasSubstr("header[1] = 7 at offset 4: expected version 1"));
  EXPECT_THAT(with(2, -1), HasSubstr("header[2] = -1 at offset 8"));
  EXPECT_THAT(with(2, INT32_MAX), HasSubstr("need a file of 4294968318 bytes"));
}

TEST(LlmcHeaderTest, BothKindsAreRead) {
  const LlmcHeader gpt2 = Parse(LlmcFile({1, 2, 3}));
  EXPECT_EQ(std::tuple(gpt2.dtype, gpt2.tokens), std::tuple(TokenDtype::kUint16, 3));
  const LlmcHeader llama = Parse(LlmcFile32({1, 70000}));
  EXPECT_EQ(std::tuple(llama.dtype, llama.tokens), std::tuple(TokenDtype::kUint32, 2));
  EXPECT_EQ(Parse(LlmcFile({})).tokens, 0);
}

TEST(LlmcHeaderTest, TextIsNoneOfThem) {
  EXPECT_TRUE(IsLlmcFile(LlmcFile({})));
  EXPECT_TRUE(IsLlmcFile(Stored<int32_t>(20240522)));
  EXPECT_FALSE(IsLlmcFile("Once upon a time"));
  EXPECT_FALSE(IsLlmcFile(Stored<int32_t>(20240520).substr(0, 3)));
}

}  // namespace
}  // namespace fsdprun
