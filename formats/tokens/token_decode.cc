#include "formats/tokens/token_decode.h"

#include <bit>
#include <cstring>

namespace fsdprun {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

template <class Stored>
void Widen(const uint8_t* bytes, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    Stored token;
    std::memcpy(&token, bytes + i * static_cast<int64_t>(sizeof token), sizeof token);
    out[i] = static_cast<int64_t>(token);  // NOLINT(bugprone-signed-char-misuse): it is a number
  }
}

}  // namespace

void DecodeTokens(TokenDtype dtype, const uint8_t* bytes, int64_t count, int64_t* out) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return Widen<uint8_t>(bytes, count, out);
    case TokenDtype::kInt8:
      return Widen<int8_t>(bytes, count, out);
    case TokenDtype::kUint16:
      return Widen<uint16_t>(bytes, count, out);
    case TokenDtype::kInt16:
      return Widen<int16_t>(bytes, count, out);
    case TokenDtype::kUint32:
      return Widen<uint32_t>(bytes, count, out);
    case TokenDtype::kInt32:
      return Widen<int32_t>(bytes, count, out);
    case TokenDtype::kInt64:
      return Widen<int64_t>(bytes, count, out);
  }
}

}  // namespace fsdprun
