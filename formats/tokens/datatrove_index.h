#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/tokens/token_dtype.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun {

/// What datatrove's `NAME.ds.index` says of the ids in `NAME.ds`, which has nothing but ids.
/// Source: datatrove's pipeline/tokens/tokenizer.py (TokenizedFile).
struct DatatroveIndex {
  /// uint16 or uint32, whichever makes the last end that of the file.
  TokenDtype dtype = TokenDtype::kUint16;
  int64_t tokens = 0;
  /// Where documents end, in tokens; ascending, without documents that have none. Empty unless it
  /// was asked for.
  std::vector<int64_t> document_ends;
};

/// Reads and checks all of an index. `data_bytes`: the size of `NAME.ds`. Errors: ConfigError
/// naming `source`, the number and its offset; as the file's. Memory: 8 bytes a document, if they
/// are wanted.
DatatroveIndex ReadDatatroveIndex(const fsdp::archive::ByteSource& file, int64_t data_bytes,
                                  const std::string& source, bool wants_documents);

}  // namespace fsdprun
