#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/json/strict_json.h"
#include "formats/tokens/token_dtype.h"

namespace fsdprun {

/// Bytes before the ids of a token file of llm.c: 256 numbers of 4 bytes. Source: llm.c's
/// dev/data/data_common.py and llmc/dataloader.h.
inline constexpr int64_t kLlmcHeaderBytes = 1024;

/// What the header of a token file of llm.c (`.bin`) says.
struct LlmcHeader {
  /// uint16 in files of GPT-2's tokenizer, uint32 in those of Llama 3's.
  TokenDtype dtype = TokenDtype::kUint16;
  int64_t tokens = 0;
};

/// Whether a file that begins with `head` is one of llm.c, of tokens or of something else.
bool IsLlmcFile(std::string_view head);

/// `head`: the first kLlmcHeaderBytes of the file, or all of a shorter one. Errors: ConfigError
/// naming `source`, field and offset: no token file of llm.c, an unknown version, and a number of
/// tokens that does not match `file_bytes`.
LlmcHeader ParseLlmcHeader(std::string_view head, int64_t file_bytes, const std::string& source);

}  // namespace fsdprun
