#include "formats/tokens/datatrove_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/formats/tokens/token_bytes.h"

namespace fsdprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DatatroveIndex ReadEnds(const std::string& bytes, int64_t data_bytes) {
  return ReadDatatroveIndex(BytesSource(bytes), data_bytes, "a.ds.index", /*wants_documents=*/true);
}
std::string EndsRefusal(const std::string& bytes, int64_t data_bytes) {
  return RefusalOf([&] { ReadEnds(bytes, data_bytes); });
}

TEST(DatatroveIndexTest, EveryTruncationIsRefused) {
  const std::string good = StoredList<uint64_t>({3, 3, 10});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(EndsRefusal(good.substr(0, size), 20), HasSubstr("a.ds.index: ")) << size;
  }
}

TEST(DatatroveIndexTest, WrongNumberIsNamedWithItsOffset) {
  EXPECT_THAT(EndsRefusal(StoredList<uint64_t>({3, 2}), 4), HasSubstr("end[1] = 2 at offset 8"));
  EXPECT_THAT(EndsRefusal(StoredList<uint64_t>({3, UINT64_MAX}), 4),
              HasSubstr("end[1] = 18446744073709551615 at offset 8"));
  EXPECT_THAT(EndsRefusal(StoredList<uint64_t>({3, 5}), 12),
              HasSubstr("ends at token 5, so the data have 10 bytes (uint16) or 20 (uint32), and "
                        "the file beside it has 12"));
}

TEST(DatatroveIndexTest, SizeOfTheDataSaysTheType) {
  const std::string ends = StoredList<uint64_t>({3, 3, 10});
  const DatatroveIndex narrow = ReadEnds(ends, 20);
  EXPECT_EQ(std::tuple(narrow.dtype, narrow.tokens), std::tuple(TokenDtype::kUint16, 10));
  EXPECT_THAT(narrow.document_ends, ElementsAre(3, 10));
  EXPECT_EQ(ReadEnds(ends, 40).dtype, TokenDtype::kUint32);
}

}  // namespace
}  // namespace fsdprun
