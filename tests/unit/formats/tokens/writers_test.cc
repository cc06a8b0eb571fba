#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/tokens/llmc_header.h"
#include "formats/tokens/llmc_writer.h"
#include "formats/tokens/megatron_index.h"
#include "formats/tokens/megatron_writer.h"
#include "formats/tokens/token_bin_writer.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"
#include "tests/unit/formats/tokens/token_bytes.h"

namespace fsdprun {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(TokenBinWriterTest, AnIdThatDoesNotFitIsRefused) {
  const TemporaryDirectory folder(MemoryDirectory());
  TokenBinWriter writer(folder / "a.bin", TokenDtype::kUint16, 0, Existing::kRefuse);
  const std::vector<uint32_t> ids = {65535, 65536};
  EXPECT_THAT(MessageOf<Error>([&] { writer.Append(ids.data(), ids.size()); }),
              AllOf(HasSubstr("the id 65536"), HasSubstr("a.bin"), HasSubstr("at most 65535")));
}

TEST(TokenBinWriterTest, IdsAreStoredAsTheirTypeSays) {
  const TemporaryDirectory folder(MemoryDirectory());
  const std::vector<uint32_t> ids = {1, 200};
  for (const TokenDtype dtype : {TokenDtype::kUint8, TokenDtype::kUint16, TokenDtype::kInt32,
                                 TokenDtype::kUint32, TokenDtype::kInt64}) {
    const std::string path = folder / std::string(TokenDtypeName(dtype));
    TokenBinWriter writer(path, dtype, 3, Existing::kRefuse);
    writer.Append(ids.data(), ids.size());
    writer.Append(ids.data(), 1);
    writer.Flush();
    EXPECT_EQ(writer.tokens(), 3);
    writer.file().Write(0, "abc");
    EXPECT_THAT(NamesOf(folder.path()), testing::Not(testing::Contains(TokenDtypeName(dtype))));
    writer.file().Publish();
    const auto width = static_cast<size_t>(TokenBytes(dtype));
    std::string expected = "abc";
    for (const char id : {'\1', '\xc8', '\1'}) {
      expected += id + std::string(width - 1, '\0');
    }
    EXPECT_EQ(Content(path), expected) << TokenDtypeName(dtype);
  }
}

TEST(TokenBinWriterTest, FilesThatAreLargerThanTheBufferAreWhole) {
  const TemporaryDirectory folder(MemoryDirectory());
  std::vector<uint32_t> ids(1'500'000);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<uint32_t>(i * 7919);
  }
  TokenBinWriter writer(folder / "a", TokenDtype::kUint32, 0, Existing::kRefuse);
  writer.Append(ids.data(), ids.size());
  writer.Flush();
  writer.file().Publish();
  const std::string content = Content(folder / "a");
  ASSERT_EQ(content.size(), 4 * ids.size());
  EXPECT_EQ(std::memcmp(content.data(), ids.data(), content.size()), 0);
}

TEST(LlmcWriterTest, TheReaderFindsWhatWasWritten) {
  for (const TokenDtype dtype : {TokenDtype::kUint16, TokenDtype::kUint32}) {
    const LlmcHeader header = ParseLlmcHeader(
        FormatLlmcHeader(dtype, 1'000'003), kLlmcHeaderBytes + 1'000'003 * TokenBytes(dtype), "a");
    EXPECT_EQ(header.dtype, dtype);
    EXPECT_EQ(header.tokens, 1'000'003);
  }
}

TEST(MegatronWriterTest, ATypeThatTheFormatLacksIsRefused) {
  const TemporaryDirectory folder(MemoryDirectory());
  OutputFile file(folder / "a.idx", MegatronIndexBytes(0), Existing::kRefuse);
  EXPECT_THAT(MessageOf<Error>([&] { WriteMegatronIndex({}, TokenDtype::kUint32, file); }),
              HasSubstr("uint32"));
}

TEST(MegatronWriterTest, TheReaderFindsWhatWasWritten) {
  const TemporaryDirectory folder(MemoryDirectory());
  const std::vector<int32_t> lengths = {5, 1, 70'000, 2};
  OutputFile file(folder / "a.idx", MegatronIndexBytes(4), Existing::kRefuse);
  WriteMegatronIndex(lengths, TokenDtype::kInt32, file);
  file.Publish();
  const MegatronIndex index = ReadMegatronIndex(BytesSource(Content(folder / "a.idx")), "a.idx",
                                                /*wants_documents=*/true);
  EXPECT_EQ(index.dtype, TokenDtype::kInt32);
  EXPECT_EQ(index.tokens, 70'008);
  EXPECT_THAT(index.document_ends, ElementsAre(5, 6, 70'006, 70'008));
}

}  // namespace
}  // namespace fsdprun
