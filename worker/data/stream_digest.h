#pragma once

#include <cstdint>
#include <string>

#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// A digest of the first `size` tokens of `stream`, as 16 hex digits: of their number and of blocks
/// spread evenly from the first to the last token. All of up to 4 Mi tokens, 4 Mi of more, so that
/// it takes milliseconds whatever the size: other data are told apart, a change of a few tokens in
/// gigabytes may be missed. The same ids in files of another format or width are the same tokens.
/// Not for protection against anybody. Precondition: size <= stream.size(). Errors: as
/// TokenStream's.
std::string SampledDigest(const TokenStream& stream, int64_t size);

/// 16 hex digits.
std::string FormatDigest(uint64_t digest);

}  // namespace fsdprun::worker
