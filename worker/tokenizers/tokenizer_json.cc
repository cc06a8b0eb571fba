#include "worker/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <utility>

#include "worker/tokenizers/json_field.h"
#include "worker/tokenizers/tokenizer_json_parts.h"

namespace fsdprun::worker {
namespace {

JsonField OrNull(const JsonField& document, const char* key) {
  static const LookupJson null;
  return document.Has(key) ? document.At(key) : JsonField(null, document.name() + ": " + key);
}

/// Of all ids that a post-processor names.
void CheckAreTokens(const std::vector<uint32_t>& ids, const std::string& name,
                    const TokenizerJson& out) {
  for (const uint32_t id : ids) {
    const auto found = std::lower_bound(out.bytes_of.begin(), out.bytes_of.end(),
                                        std::pair<uint32_t, std::string>(id, ""));
    if (found == out.bytes_of.end() || found->first != id) {
      throw ConfigError(name + ": the id " + std::to_string(id) + " has no token");
    }
  }
}

}  // namespace

void RefuseType(const JsonField& field, const std::string& expectation) {
  const JsonField type = field.At("type");
  type.Refuse(expectation + "; others are not supported");
}

TokenizerJson ParseTokenizerJson(std::string_view text, const std::string& source) {
  const LookupJson parsed = ParseLargeJson(text, source);
  const JsonField document(parsed, source, ": ");
  document.CheckKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"});
  if (document.Has("version") && document.At("version").Text() != "1.0") {
    document.At("version").Refuse("\"1.0\"");
  }
  TokenizerJson out;
  const JsonField model = document.At("model");
  CheckModelOptions(model);
  out.is_normalized = ReadNormalizer(OrNull(document, "normalizer"));
  const JsonField pre_tokenizer = document.At("pre_tokenizer");
  if (pre_tokenizer.is_null() || !ReadPreTokenizer(pre_tokenizer, out.rules)) {
    pre_tokenizer.Refuse(
        "one that is or ends with \"ByteLevel\"; for one that was made from SentencePiece give its "
        "tokenizer.model");
  }
  const IdOf ids = ReadVocabulary(model.At("vocab"), out);
  out.vocabulary.ignores_merges = model.TruthOrFalse("ignore_merges");
  ReadMerges(model.At("merges"), ids, out.vocabulary);
  if (document.Has("added_tokens")) {
    ReadAddedTokens(document.At("added_tokens"), ids, out);
  }
  const JsonField post_processor = OrNull(document, "post_processor");
  ReadPostProcessor(post_processor, out);
  CheckAreTokens(out.before_text, post_processor.name(), out);
  CheckAreTokens(out.behind_text, post_processor.name(), out);
  CheckDecoder(OrNull(document, "decoder"));
  return out;
}

}  // namespace fsdprun::worker
