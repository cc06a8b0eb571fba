#include "worker/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "worker/tokenizers/byte_level.h"
#include "worker/tokenizers/json_field.h"
#include "worker/tokenizers/nfc.h"
#include "worker/tokenizers/split_pattern.h"

namespace fsdprun::worker {
namespace {

// GPT-2's, which is part of the library.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Rust's char::is_numeric, which is of Unicode 17 (Note [Unicode versions]).
constexpr char kNumeric[] = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";
constexpr int kMaxRules = 16;

/// Ids by the text of a token, as the file has it.
using IdOf = std::unordered_map<std::string_view, uint32_t>;

[[noreturn]] void RefuseType(const JsonField& field, const std::string& expectation) {
  const JsonField type = field.At("type");
  type.Refuse(expectation + "; others are not supported");
}

// --- model ---------------------------------------------------------------------------------------

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

/// The id of each token, each once.
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
    out.bytes_of.emplace_back(id, bytes ? std::move(*bytes) : token);
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

// --- added tokens --------------------------------------------------------------------------------

AddedToken ReadAddedToken(const JsonField& field) {
  field.CheckKeys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id = field.At("id").Id();
  token.content = field.At("content").Text();
  token.is_single_word = field.At("single_word").Truth();
  token.strips_left = field.At("lstrip").Truth();
  token.strips_right = field.At("rstrip").Truth();
  token.is_normalized = field.At("normalized").Truth();
  token.is_special = field.At("special").Truth();
  if (token.content.empty()) {
    field.At("content").Refuse("a text that is not empty");
  }
  return token;
}

/// What the library looks for.
std::string Pattern(const AddedToken& token, bool is_normalized) {
  return token.is_normalized && is_normalized ? ToNfc(token.content) : token.content;
}

// The library does not take the ids from the list, and says so in a warning only: a token that the
// model has keeps that id, others are numbered from the size of the model's vocabulary on. A file
// that says otherwise would give other ids here than there.
void ReadAddedTokens(const JsonField& list, const IdOf& ids, TokenizerJson& out) {
  auto next_id = static_cast<uint32_t>(ids.size());
  std::set<std::string> contents;
  std::set<std::pair<bool, std::string>> patterns;
  const size_t count = list.size();
  for (size_t i = 0; i < count; ++i) {
    const JsonField field = list.At(i);
    AddedToken token = ReadAddedToken(field);
    const auto known = ids.find(token.content);
    const uint32_t id = known != ids.end() ? known->second : next_id++;
    if (token.id != id) {
      field.At("id").Refuse(std::to_string(id) +
                            ", which is what the library tokenizers gives to this token");
    }
    std::string content = token.content;
    token.content = Pattern(token, out.is_normalized);
    if (!contents.insert(content).second ||
        !patterns.emplace(token.is_normalized, token.content).second) {
      field.At("content").Refuse("a token that does not occur before");
    }
    if (known == ids.end()) {
      out.bytes_of.emplace_back(id, std::move(content));
    }
    out.added_tokens.push_back(std::move(token));
  }
  std::sort(out.bytes_of.begin(), out.bytes_of.end());
  const auto taken =
      std::adjacent_find(out.bytes_of.begin(), out.bytes_of.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (taken != out.bytes_of.end()) {
    throw ConfigError(list.name() + ": the id " + std::to_string(taken->first) +
                      " is one of model.vocab, too, of another token");
  }
}

// --- normalizer and pre-tokenizer ----------------------------------------------------------------

bool ReadNormalizer(const JsonField& field) {
  if (field.is_null()) {
    return false;
  }
  const std::string type = field.At("type").Text();
  if (type == "Sequence") {
    field.CheckKeys({"type", "normalizers"});
    const JsonField list = field.At("normalizers");
    bool is_normalized = false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list.At(i).At("type").Text() != "NFC") {
        RefuseType(list.At(i), "\"NFC\"");
      }
      is_normalized |= ReadNormalizer(list.At(i));
    }
    return is_normalized;
  }
  if (type != "NFC") {
    RefuseType(field, "\"NFC\" or null");
  }
  field.CheckKeys({"type"});
  return true;
}

MatchBehavior ReadBehavior(const JsonField& field) {
  const std::pair<std::string_view, MatchBehavior> behaviors[] = {
      {"Isolated", MatchBehavior::kIsolated},
      {"Removed", MatchBehavior::kRemoved},
      {"MergedWithPrevious", MatchBehavior::kMergedWithPrevious},
      {"MergedWithNext", MatchBehavior::kMergedWithNext},
      {"Contiguous", MatchBehavior::kContiguous}};
  const std::string name = field.Text();
  for (const auto& [known, behavior] : behaviors) {
    if (known == name) {
      return behavior;
    }
  }
  field.Refuse(
      "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" or "
      "\"Contiguous\"");
}

WordRule ReadSplit(const JsonField& field) {
  field.CheckKeys({"type", "pattern", "behavior", "invert"});
  const JsonField pattern = field.At("pattern");
  pattern.CheckKeys({"Regex", "String"});
  if (pattern.value().size() != 1) {
    pattern.Refuse("either Regex or String");
  }
  WordRule rule;
  const bool is_regex = pattern.Has("Regex");
  const JsonField text = pattern.At(is_regex ? "Regex" : "String");
  rule.pattern.emplace(is_regex ? text.Text() : QuoteForPattern(text.Text()), text.name());
  rule.behavior = ReadBehavior(field.At("behavior"));
  rule.is_inverted = field.At("invert").Truth();
  return rule;
}

WordRule ReadByteLevel(const JsonField& field) {
  field.CheckKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  WordRule rule;
  rule.adds_prefix_space = field.At("add_prefix_space").Truth();
  if (!field.Has("use_regex") || field.At("use_regex").Truth()) {
    rule.pattern.emplace(kByteLevelPattern, field.name());
  }
  return rule;
}

WordRule ReadDigits(const JsonField& field) {
  field.CheckKeys({"type", "individual_digits"});
  WordRule rule;
  const bool is_each_alone = field.At("individual_digits").Truth();
  rule.pattern.emplace(std::string(kNumeric) + (is_each_alone ? "" : "+"), field.name());
  return rule;
}

/// Appends what a pre-tokenizer does; whether that ends with words of bytes.
bool ReadPreTokenizer(const JsonField& field, int depth, std::vector<WordRule>& rules) {
  const std::string type = field.At("type").Text();
  if (type == "Sequence" && depth == 0) {
    field.CheckKeys({"type", "pretokenizers"});
    const JsonField list = field.At("pretokenizers");
    bool is_of_bytes = false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_of_bytes) {
        list.At(i).Refuse("nothing behind \"ByteLevel\"");
      }
      is_of_bytes = ReadPreTokenizer(list.At(i), depth + 1, rules);
    }
    return is_of_bytes;
  }
  if (rules.size() == kMaxRules) {
    field.Refuse("at most " + std::to_string(kMaxRules) + " steps");
  }
  if (type == "Split") {
    rules.push_back(ReadSplit(field));
  } else if (type == "Digits") {
    rules.push_back(ReadDigits(field));
  } else if (type == "ByteLevel") {
    rules.push_back(ReadByteLevel(field));
    return true;
  } else {
    RefuseType(field, depth == 0 ? "\"ByteLevel\", \"Split\", \"Digits\" or \"Sequence\""
                                 : "\"ByteLevel\", \"Split\" or \"Digits\"");
  }
  return false;
}

// --- post-processor and decoder ------------------------------------------------------------------

void ReadTemplate(const JsonField& field, TokenizerJson& out) {
  field.CheckKeys({"type", "single", "pair", "special_tokens"});
  const JsonField single = field.At("single");
  const JsonField special = field.At("special_tokens");
  bool has_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonField piece = single.At(i);
    piece.CheckKeys({"Sequence", "SpecialToken"});
    if (piece.Has("Sequence")) {
      const JsonField id = piece.At("Sequence").At("id");
      if (id.Text() != "A" || has_text || piece.Has("SpecialToken")) {
        id.Refuse("the text \"A\" once");
      }
      has_text = true;
      continue;
    }
    const std::string name = piece.At("SpecialToken").At("id").Text();
    const JsonField ids = special.At(name.c_str()).At("ids");
    for (size_t k = 0; k < ids.size(); ++k) {
      (has_text ? out.behind_text : out.before_text).push_back(ids.At(k).Id());
    }
  }
  if (!has_text) {
    single.Refuse("a template with the text \"A\"");
  }
}

/// `has_template`: whether one was read before.
void ReadPostProcessor(const JsonField& field, int depth, bool& has_template, TokenizerJson& out) {
  if (field.is_null()) {
    return;
  }
  const std::string type = field.At("type").Text();
  if (type == "Sequence" && depth == 0) {
    field.CheckKeys({"type", "processors"});
    const JsonField list = field.At("processors");
    for (size_t i = 0; i < list.size(); ++i) {
      ReadPostProcessor(list.At(i), depth + 1, has_template, out);
    }
  } else if (type == "TemplateProcessing" && !has_template) {
    has_template = true;
    ReadTemplate(field, out);
  } else if (type != "ByteLevel") {
    // ByteLevel moves offsets, not ids.
    RefuseType(field, "\"ByteLevel\", one \"TemplateProcessing\", or a \"Sequence\" of both");
  }
}

void CheckDecoder(const JsonField& field, int depth) {
  if (field.is_null()) {
    return;
  }
  const std::string type = field.At("type").Text();
  if (type == "Sequence" && depth == 0) {
    const JsonField list = field.At("decoders");
    for (size_t i = 0; i < list.size(); ++i) {
      CheckDecoder(list.At(i), depth + 1);
    }
  } else if (type != "ByteLevel") {
    RefuseType(field, "\"ByteLevel\"");
  }
}

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
  if (pre_tokenizer.is_null() || !ReadPreTokenizer(pre_tokenizer, 0, out.rules)) {
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
  bool has_template = false;
  ReadPostProcessor(post_processor, 0, has_template, out);
  CheckAreTokens(out.before_text, post_processor.name(), out);
  CheckAreTokens(out.behind_text, post_processor.name(), out);
  CheckDecoder(OrNull(document, "decoder"), 0);
  return out;
}

}  // namespace fsdprun::worker
