#pragma once

#include <cstdint>
#include <string>

#include "formats/tokens/token_dtype.h"

namespace fsdprun {

/// The most tokens that a token file of llm.c can have: its header counts them in an int32.
inline constexpr int64_t kLlmcMostTokens = INT32_MAX;

/// The header of a token file of llm.c: version 1 for uint16, 7 for uint32. Source: llm.c's
/// dev/data/data_common.py. Precondition: one of these types, 0 <= tokens <= kLlmcMostTokens. Pure.
std::string FormatLlmcHeader(TokenDtype dtype, int64_t tokens);

}  // namespace fsdprun
