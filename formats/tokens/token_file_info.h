#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/tokens/token_dtype.h"

namespace fsdprun {

/// Which tokenizer has made the ids.
struct TokenizerIdentity {
  /// "bytes", "tokenizer.json" or "sentencepiece".
  std::string kind;
  /// XXH3-64 of the tokenizer's file, as 16 hex digits; of "bytes" that of no bytes.
  std::string digest;

  bool operator==(const TokenizerIdentity&) const = default;
};

/// What a token file does not say of itself: the content of NAME.bin.json, which lies beside
/// NAME.bin.
struct TokenFileInfo {
  TokenDtype dtype = TokenDtype::kUint16;
  /// Of NAME.bin.
  int64_t tokens = 0;
  /// One more than the largest id that the tokenizer can give.
  int64_t vocab_size = 0;
  /// The id that stands behind every document; none if nothing does.
  std::optional<int64_t> document_end;
  TokenizerIdentity tokenizer;
  /// The files that the text is from, as they were named.
  std::vector<std::string> sources;

  bool operator==(const TokenFileInfo&) const = default;
};

/// "NAME.bin.json" of "NAME.bin".
std::string TokenFileInfoPath(const std::string& token_file);

/// Errors: ConfigError naming `source`, the key and what is expected: a key that is unknown or
/// missing, another format than "fsdprun-tokens-1", a value of the wrong kind or out of its range.
TokenFileInfo ParseTokenFileInfo(const Json& document, const std::string& source);

/// Reads a file of at most 16 MiB. Errors: as above, and as ReadSmallFile's.
TokenFileInfo ReadTokenFileInfo(const std::string& path);

/// The text of NAME.bin.json. A source that is not UTF-8 has U+FFFD where it is not.
std::string FormatTokenFileInfo(const TokenFileInfo& info);

}  // namespace fsdprun
