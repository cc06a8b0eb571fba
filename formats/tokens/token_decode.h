#pragma once

#include <cstdint>

#include "formats/tokens/token_dtype.h"

namespace fsdprun {

/// Widens `count` ids of `dtype`, which begin at `bytes` at any alignment. Ids of signed types may
/// be negative.
void DecodeTokens(TokenDtype dtype, const uint8_t* bytes, int64_t count, int64_t* out);

}  // namespace fsdprun
