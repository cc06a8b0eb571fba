#include "formats/tokens/megatron_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/formats/tokens/token_bytes.h"

namespace fsdprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kLengths = 34;
constexpr size_t kPointers = kLengths + 4 * 4;
constexpr size_t kDocuments = kPointers + 4 * 8;

/// Sequences of 3, 0, 2 and 4 uint16 ids; documents of 3, 0, and 6 of them.
std::string GoodIndex() { return MegatronIndexFile(8, 2, {3, 0, 2, 4}, {0, 1, 2, 4}); }

MegatronIndex ReadBytes(const std::string& bytes, bool wants_documents = true) {
  return ReadMegatronIndex(BytesSource(bytes), "a.idx", wants_documents);
}
std::string IndexRefusal(const std::string& bytes) {
  return RefusalOf([&] { ReadBytes(bytes); });
}
template <class Number>
std::string RefusalWith(size_t offset, Number number) {
  std::string bytes = GoodIndex();
  bytes.replace(offset, sizeof number, Stored(number));
  return IndexRefusal(bytes);
}

TEST(MegatronIndexTest, EveryTruncationAndAdditionIsRefused) {
  const std::string good = GoodIndex();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(IndexRefusal(good.substr(0, size)), HasSubstr("a.idx: ")) << size;
  }
  for (const size_t more : {1, 3, 5, 8}) {
    EXPECT_THAT(IndexRefusal(good + std::string(more, '\0')), HasSubstr("counts at offset 18 need"))
        << more;
  }
}

TEST(MegatronIndexTest, WrongHeaderIsNamed) {
  EXPECT_THAT(RefusalWith<char>(0, 'X'), HasSubstr("not an index of Megatron-LM"));
  EXPECT_THAT(IndexRefusal(std::string("TNTIDX\0\0", 8) + std::string(100, '\0')),
              HasSubstr("older format (TNTIDX)"));
  EXPECT_THAT(RefusalWith<uint64_t>(9, 2), HasSubstr("version = 2 at offset 9: expected 1"));
  EXPECT_THAT(RefusalWith<uint8_t>(17, 7), HasSubstr("dtype code = 7 at offset 17"));
  EXPECT_THAT(RefusalWith<uint8_t>(17, 0), HasSubstr("dtype code = 0 at offset 17"));
  for (const uint64_t count : {uint64_t{5000}, uint64_t{1} << 62, UINT64_MAX}) {
    EXPECT_THAT(RefusalWith(18, count), HasSubstr("sequence_count = " + std::to_string(count) +
                                                  " at offset 18: a file of 114 bytes"));
    EXPECT_THAT(RefusalWith(26, count), HasSubstr("document_count = " + std::to_string(count) +
                                                  " at offset 26: a file of 114 bytes"));
  }
}

TEST(MegatronIndexTest, WrongNumberIsNamedWithItsOffset) {
  EXPECT_THAT(RefusalWith<int32_t>(kLengths, -3),
              HasSubstr("sequence_lengths[0] = -3 at offset 34: expected a number of tokens"));
  EXPECT_THAT(RefusalWith<int32_t>(kLengths + 4, 1),
              HasSubstr("sequence_pointers[2] = 6 at offset 66: expected 8"));
  EXPECT_THAT(RefusalWith<int64_t>(kPointers + 24, 11),
              HasSubstr("sequence_pointers[3] = 11 at offset 74: expected 10"));
  EXPECT_THAT(RefusalWith<int64_t>(kPointers, -1), HasSubstr("sequence_pointers[0] = -1"));
  EXPECT_THAT(RefusalWith<int64_t>(kDocuments, 1),
              HasSubstr("document_indices[0] = 1 at offset 82: expected 0"));
  EXPECT_THAT(RefusalWith<int64_t>(kDocuments + 16, 0),
              HasSubstr("document_indices[2] = 0 at offset 98: expected at least the one before"));
  EXPECT_THAT(
      RefusalWith<int64_t>(kDocuments + 24, 5),
      HasSubstr("document_indices[3] = 5 at offset 106: expected at most the number of sequences"));
}

TEST(MegatronIndexTest, DocumentsEndWhereTheirSequencesDo) {
  const MegatronIndex index = ReadBytes(GoodIndex());
  EXPECT_EQ(std::tuple(index.dtype, index.tokens), std::tuple(TokenDtype::kUint16, 9));
  EXPECT_THAT(index.document_ends, ElementsAre(3, 9));
  EXPECT_THAT(ReadBytes(GoodIndex(), /*wants_documents=*/false).document_ends, IsEmpty());
}

TEST(MegatronIndexTest, ModesMayFollow) {
  EXPECT_EQ(ReadBytes(GoodIndex() + std::string(4, '\1')).tokens, 9);
}

TEST(MegatronIndexTest, WhatIsBehindTheLastDocumentIsOne) {
  EXPECT_THAT(ReadBytes(MegatronIndexFile(4, 4, {3, 5}, {0, 1})).document_ends, ElementsAre(3, 8));
  EXPECT_THAT(ReadBytes(MegatronIndexFile(4, 4, {3, 5}, {})).document_ends, ElementsAre(8));
  EXPECT_THAT(ReadBytes(MegatronIndexFile(4, 4, {}, {0})).document_ends, IsEmpty());
}

TEST(MegatronIndexTest, EveryTypeOfIntegers) {
  const std::vector<std::pair<int, TokenDtype>> types = {
      {1, TokenDtype::kUint8}, {2, TokenDtype::kInt8},  {3, TokenDtype::kInt16},
      {4, TokenDtype::kInt32}, {5, TokenDtype::kInt64}, {8, TokenDtype::kUint16}};
  for (const auto& [code, dtype] : types) {
    const auto index =
        ReadBytes(MegatronIndexFile(static_cast<uint8_t>(code), TokenBytes(dtype), {2, 5}, {0, 2}));
    EXPECT_EQ(std::tuple(index.dtype, index.tokens), std::tuple(dtype, 7));
  }
}

TEST(MegatronIndexTest, IndexLargerThanTheBufferOfAReader) {
  std::vector<int32_t> lengths;
  std::vector<int64_t> documents = {0};
  for (int32_t i = 0; i < 40'000; ++i) {
    lengths.push_back(i % 7);
    documents.push_back(i + 1);
  }
  const MegatronIndex index = ReadBytes(MegatronIndexFile(8, 2, lengths, documents));
  int64_t tokens = 0;
  std::vector<int64_t> ends;
  for (const int32_t length : lengths) {
    tokens += length;
    if (length > 0) {
      ends.push_back(tokens);
    }
  }
  EXPECT_EQ(index.tokens, tokens);
  EXPECT_EQ(index.document_ends, ends);
}

}  // namespace
}  // namespace fsdprun
