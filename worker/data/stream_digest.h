#pragma once

#include <cstdint>
#include <string>

#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// A digest of the first `size` tokens of `stream`, as 16 hex digits: of their number and of blocks
/// spread evenly from the first to the last token. All of up to 4 MiB, 4 MiB of more, so that it
/// takes milliseconds whatever the size: other data are told apart, a change of a few bytes in
/// gigabytes may be missed. Not for protection against anybody. Precondition: size <=
/// stream.size(). Errors: DataError.
std::string SampledDigest(const TokenStream& stream, int64_t size);

}  // namespace fsdprun::worker
