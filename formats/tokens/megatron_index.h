#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/tokens/token_dtype.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun {

/// What the index (`.idx`) of one of Megatron-LM's data sets says of the ids in the `.bin` beside
/// it, which are sequences without anything in between. Source: Megatron-LM's
/// core/datasets/indexed_dataset.py.
struct MegatronIndex {
  TokenDtype dtype = TokenDtype::kUint16;
  int64_t tokens = 0;
  /// Where documents end, in tokens; ascending, the last one is `tokens`, documents without tokens
  /// are left out. Empty unless it was asked for.
  std::vector<int64_t> document_ends;
};

/// Reads and checks all of an index: that the lengths are not negative, that every sequence begins
/// where the one before ends, and that the documents are in order. Errors: ConfigError naming
/// `source`, the field and its offset; as the file's. Memory: 8 bytes a document, if they are
/// wanted. Time: about 1 s for 10^8 sequences.
MegatronIndex ReadMegatronIndex(const fsdp::archive::ByteSource& file, const std::string& source,
                                bool wants_documents);

}  // namespace fsdprun
