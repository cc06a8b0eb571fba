#include "formats/tokens/token_dtype.h"

#include <array>

namespace fsdprun {
namespace {

struct TokenType {
  TokenDtype dtype;
  std::string_view name;
  int64_t bytes;
  int64_t largest;
};

/// In the order of the enumerators.
constexpr std::array<TokenType, 7> kTokenTypes = {{
    {TokenDtype::kUint8, "uint8", 1, UINT8_MAX},
    {TokenDtype::kInt8, "int8", 1, INT8_MAX},
    {TokenDtype::kUint16, "uint16", 2, UINT16_MAX},
    {TokenDtype::kInt16, "int16", 2, INT16_MAX},
    {TokenDtype::kUint32, "uint32", 4, UINT32_MAX},
    {TokenDtype::kInt32, "int32", 4, INT32_MAX},
    {TokenDtype::kInt64, "int64", 8, INT64_MAX},
}};

const TokenType& TypeOf(TokenDtype dtype) { return kTokenTypes[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view TokenDtypeName(TokenDtype dtype) { return TypeOf(dtype).name; }

bool FindTokenDtype(std::string_view name, TokenDtype& dtype) {
  for (const TokenType& type : kTokenTypes) {
    if (type.name == name) {
      dtype = type.dtype;
      return true;
    }
  }
  return false;
}

int64_t TokenBytes(TokenDtype dtype) { return TypeOf(dtype).bytes; }

int64_t LargestTokenId(TokenDtype dtype) { return TypeOf(dtype).largest; }

}  // namespace fsdprun
