#include "formats/tokens/token_decode.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/formats/tokens/token_bytes.h"

namespace fsdprun {
namespace {

/// The numbers stored as `Number`, from an odd address.
template <class Number>
void ExpectComesBack(TokenDtype dtype) {
  const std::vector<Number> numbers = {0, 1, std::numeric_limits<Number>::max(),
                                       std::numeric_limits<Number>::min(), 7};
  const std::string bytes = "x" + StoredList(numbers);
  std::vector<int64_t> tokens(numbers.size(), -99);
  DecodeTokens(dtype, reinterpret_cast<const uint8_t*>(bytes.data()) + 1,
               static_cast<int64_t>(numbers.size()), tokens.data());
  EXPECT_EQ(tokens, std::vector<int64_t>(numbers.begin(), numbers.end())) << TokenDtypeName(dtype);
}

TEST(TokenDecodeTest, EveryTypeAtAnyAlignment) {
  ExpectComesBack<uint8_t>(TokenDtype::kUint8);
  ExpectComesBack<int8_t>(TokenDtype::kInt8);
  ExpectComesBack<uint16_t>(TokenDtype::kUint16);
  ExpectComesBack<int16_t>(TokenDtype::kInt16);
  ExpectComesBack<uint32_t>(TokenDtype::kUint32);
  ExpectComesBack<int32_t>(TokenDtype::kInt32);
  ExpectComesBack<int64_t>(TokenDtype::kInt64);
}

}  // namespace
}  // namespace fsdprun
