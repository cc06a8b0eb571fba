#pragma once

#include <cstdint>
#include <string_view>

namespace fsdprun {

/// How the ids of a token file are stored, little-endian.
enum class TokenDtype { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kInt64 };

/// "uint16", as numpy spells it.
std::string_view TokenDtypeName(TokenDtype dtype);

/// False if no type has this name; `dtype` is as it was then.
bool FindTokenDtype(std::string_view name, TokenDtype& dtype);

/// Bytes of one id.
int64_t TokenBytes(TokenDtype dtype);

/// The largest id that fits.
int64_t LargestTokenId(TokenDtype dtype);

}  // namespace fsdprun
