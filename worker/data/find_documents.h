#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// Appends where documents end among the tokens [begin, end) of `stream`: behind each
/// `document_end`, and at `end`. Without such an id they are one document. Reads all of them, if
/// there is one. Precondition: inside the stream. Errors: as TokenStream's.
void AppendDocumentEnds(const TokenStream& stream, int64_t begin, int64_t end,
                        std::optional<int64_t> document_end, std::vector<int64_t>& ends);

}  // namespace fsdprun::worker
