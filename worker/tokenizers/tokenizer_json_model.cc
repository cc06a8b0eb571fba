#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "worker/tokenizers/byte_level.h"
#include "worker/tokenizers/tokenizer_json_parts.h"

namespace fsdprun::worker {
namespace {

/// "a b" or ["a", "b"].
std::pair<std::string, std::string> ReadMerge(const JsonField& field) {
  const std::string expectation = "two tokens, such as \"a b\" or [\"a\", \"b\"]";
  const LookupJson& value = field.value();
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  }
  if (!value.is_string()) {
    field.Refuse(expectation);
  }
  const std::string text = value.get<std::string>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    field.Refuse(expectation);
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

uint32_t IdOfMergeToken(const std::string& token, const IdOf& ids, const JsonField& field) {
  const auto found = ids.find(token);
  if (found == ids.end()) {
    field.Refuse("tokens of model.vocab; " + LookupJson(token).dump() + " is none");
  }
  return found->second;
}

}  // namespace

void CheckModelOptions(const JsonField& model) {
  model.CheckKeys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                   "merges"});
  if (model.Has("type") && model.At("type").Text() != "BPE") {
    RefuseType(model, "\"BPE\"");
  }
  if (model.Has("dropout") && !model.At("dropout").is_null() && model.At("dropout").value() != 0) {
    model.At("dropout").Refuse("null: ids that depend on chance are not supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Has(key) && !model.At(key).is_null() && !model.At(key).Text().empty()) {
      model.At(key).Refuse("null: others are not supported");
    }
  }
  if (model.TruthOrFalse("byte_fallback")) {
    model.At("byte_fallback")
        .Refuse(
            "false: a tokenizer that was made from SentencePiece is not supported in this form; "
            "give its tokenizer.model");
  }
  // What is unknown to a byte-level vocabulary is refused when it is met in a text.
  if (model.Has("unk_token") && !model.At("unk_token").is_null()) {
    model.At("unk_token").Text();
  }
}

IdOf ReadVocabulary(const JsonField& vocab, TokenizerJson& out) {
  if (!vocab.value().is_object()) {
    vocab.Refuse("an object of tokens and ids");
  }
  if (vocab.value().empty()) {
    throw ConfigError(vocab.name() + " is empty: expected at least one token");
  }
  IdOf ids;
  ids.reserve(vocab.value().size());
  for (const auto& [token, value] : vocab.value().items()) {
    const JsonField field(value, vocab.name() + "[" + LookupJson(token).dump() + "]");
    const uint32_t id = field.Id();
    ids.emplace(token, id);
    std::optional<std::string> bytes = BytesOfToken(token);
    if (bytes && !bytes->empty()) {
      out.vocabulary.tokens.emplace_back(*bytes, id);
    }
    // A word is made of bytes, so that no word becomes a token that is spelled otherwise.
    out.bytes_of.emplace_back(id, std::move(bytes).value_or(token));
  }
  std::sort(out.bytes_of.begin(), out.bytes_of.end());
  const auto twice =
      std::adjacent_find(out.bytes_of.begin(), out.bytes_of.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != out.bytes_of.end()) {
    throw ConfigError(vocab.name() + ": the id " + std::to_string(twice->first) +
                      " has two tokens; expected one");
  }
  return ids;
}

void ReadMerges(const JsonField& merges, const IdOf& ids, BytePairVocabulary& out) {
  std::set<std::pair<uint32_t, uint32_t>> seen;
  const size_t count = merges.size();
  for (size_t i = 0; i < count; ++i) {
    const JsonField field = merges.At(i);
    if (field.value().is_string() && field.Text().starts_with("#version")) {
      continue;
    }
    const auto pair = ReadMerge(field);
    const BytePairVocabulary::Merge merge{IdOfMergeToken(pair.first, ids, field),
                                          IdOfMergeToken(pair.second, ids, field),
                                          IdOfMergeToken(pair.first + pair.second, ids, field)};
    if (!seen.emplace(merge.left, merge.right).second) {
      field.Refuse("a merge that does not occur before");
    }
    out.merges.push_back(merge);
  }
}

}  // namespace fsdprun::worker
