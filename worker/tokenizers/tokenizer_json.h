#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/tokenizers/added_tokens.h"
#include "worker/tokenizers/byte_pairs.h"
#include "worker/tokenizers/word_rules.h"

namespace fsdprun::worker {

/// What a tokenizer.json of the Python package tokenizers says: text is divided by the added
/// tokens, normalized, divided into words by the rules, each word into ids by byte pairs.
struct TokenizerJson {
  /// To Unicode's form C; else not at all.
  bool is_normalized = false;
  std::vector<AddedToken> added_tokens;
  std::vector<WordRule> rules;
  BytePairVocabulary vocabulary;
  /// What each id stands for, in bytes, ascending by id.
  std::vector<std::pair<uint32_t, std::string>> bytes_of;
  /// What the post-processor puts around a text.
  std::vector<uint32_t> before_text;
  std::vector<uint32_t> behind_text;
};

/// Reads byte-level BPE. Everything else that such a file can say and that could change an id is
/// refused: other models, normalizers, pre-tokenizers and post-processors, and keys that are not
/// known. `truncation` and `padding` mean nothing for a whole text and are passed over. Errors:
/// ConfigError naming `source` and field. Memory: some times that of `text`. Pure.
TokenizerJson ParseTokenizerJson(std::string_view text, const std::string& source);

}  // namespace fsdprun::worker
