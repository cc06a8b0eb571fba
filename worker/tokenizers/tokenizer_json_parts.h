#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "worker/tokenizers/json_field.h"
#include "worker/tokenizers/tokenizer_json.h"

// The parts of a tokenizer.json. Errors of all: ConfigError naming file and field.

namespace fsdprun::worker {

/// Ids by the text of a token, as the file has it.
using IdOf = std::unordered_map<std::string_view, uint32_t>;

/// For a part whose type is not supported.
[[noreturn]] void RefuseType(const JsonField& field, const std::string& expectation);

/// Refuses options that are not supported.
void CheckModelOptions(const JsonField& model);
/// The id of each token, each once. It refers to the document.
IdOf ReadVocabulary(const JsonField& vocab, TokenizerJson& out);
void ReadMerges(const JsonField& merges, const IdOf& ids, BytePairVocabulary& out);

/// After ReadVocabulary and ReadNormalizer.
void ReadAddedTokens(const JsonField& list, const IdOf& ids, TokenizerJson& out);

/// Whether text is normalized, to form C.
bool ReadNormalizer(const JsonField& field);
/// Appends what a pre-tokenizer does; whether that ends with words of bytes.
bool ReadPreTokenizer(const JsonField& field, std::vector<WordRule>& rules);

void ReadPostProcessor(const JsonField& field, TokenizerJson& out);
/// Refuses what is not supported.
void CheckDecoder(const JsonField& field);

}  // namespace fsdprun::worker
