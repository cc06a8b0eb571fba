#include <algorithm>
#include <set>
#include <utility>

#include "worker/tokenizers/nfc.h"
#include "worker/tokenizers/tokenizer_json_parts.h"

namespace fsdprun::worker {
namespace {

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

}  // namespace

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

}  // namespace fsdprun::worker
