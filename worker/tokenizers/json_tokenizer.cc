#include <algorithm>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <utility>

#include "worker/tokenizers/nfc.h"
#include "worker/tokenizers/tokenizer.h"
#include "worker/tokenizers/tokenizer_json.h"

namespace fsdprun::worker {
namespace {

/// Names by which well-known tokenizers end a document, the most special first.
constexpr std::string_view kDocumentEnds[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                              "<｜end▁of▁sentence｜>"};

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(TokenizerJson parsed, TokenizerIdentity identity)
      : Tokenizer(parsed.bytes_of.empty() ? 0 : int64_t{parsed.bytes_of.back().first} + 1,
                  std::move(identity)),
        json_(std::move(parsed)),
        pairs_(json_.vocabulary),
        added_(TokensThat(/*are_normalized=*/false)),
        added_normalized_(TokensThat(/*are_normalized=*/true)),
        document_end_(FindDocumentEnd()) {
    json_.vocabulary = {};  // the pairs have what they need
  }

  void Encode(std::string_view text, SpecialTokens special,
              std::vector<uint32_t>& ids) const override;
  std::string Decode(const std::vector<uint32_t>& ids) const override;
  std::optional<uint32_t> FindToken(std::string_view token) const override;
  std::optional<uint32_t> document_end() const override { return document_end_; }

 private:
  /// What one call of Encode uses; kept for the next one.
  struct Scratch {
    RegexScratch regex;
    BytePairs::Scratch pairs;
  };
  /// Takes a scratch that no other thread uses, and gives it back.
  class Lease {
   public:
    explicit Lease(const JsonTokenizer& owner) : owner_(owner) {
      const std::lock_guard lock(owner_.mutex_);
      if (!owner_.unused_.empty()) {
        scratch_ = std::move(owner_.unused_.back());
        owner_.unused_.pop_back();
      }
      if (scratch_ == nullptr) {
        scratch_ = std::make_unique<Scratch>();
      }
    }
    ~Lease() {
      const std::lock_guard lock(owner_.mutex_);
      owner_.unused_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    const JsonTokenizer& owner_;
    std::unique_ptr<Scratch> scratch_;
  };

  std::vector<AddedToken> TokensThat(bool are_normalized) const;
  std::optional<uint32_t> FindDocumentEnd() const;
  void EncodeNormalized(std::string_view text, Scratch& scratch, std::vector<uint32_t>& ids) const;
  void EncodeBy(size_t rule, std::string_view part, Scratch& scratch,
                std::vector<uint32_t>& ids) const;
  void EncodeWord(std::string_view word, Scratch& scratch, std::vector<uint32_t>& ids) const;

  TokenizerJson json_;
  BytePairs pairs_;
  AddedTokens added_;
  AddedTokens added_normalized_;
  std::optional<uint32_t> document_end_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> unused_;  // of mutex_
};

std::vector<AddedToken> JsonTokenizer::TokensThat(bool are_normalized) const {
  std::vector<AddedToken> tokens;
  std::copy_if(json_.added_tokens.begin(), json_.added_tokens.end(), std::back_inserter(tokens),
               [&](const AddedToken& token) { return token.is_normalized == are_normalized; });
  return tokens;
}

std::optional<uint32_t> JsonTokenizer::FindDocumentEnd() const {
  for (const std::string_view name : kDocumentEnds) {
    const auto found = std::find_if(json_.added_tokens.begin(), json_.added_tokens.end(),
                                    [&](const AddedToken& token) { return token.content == name; });
    if (found != json_.added_tokens.end()) {
      return found->id;
    }
  }
  return std::nullopt;
}

void JsonTokenizer::EncodeWord(std::string_view word, Scratch& scratch,
                               std::vector<uint32_t>& ids) const {
  if (word.size() > INT32_MAX) {
    throw ConfigError("a word of " + std::to_string(word.size()) +
                      " bytes is too long to be encoded");
  }
  const size_t done = pairs_.Encode(word, scratch.pairs, ids);
  if (done != word.size()) {
    char text[8];
    std::snprintf(text, sizeof text, "0x%02x", static_cast<unsigned char>(word[done]));
    throw ConfigError("model.vocab has no token for the byte " + std::string(text) +
                      ", which the text has; train the tokenizer with the whole byte alphabet");
  }
}

void JsonTokenizer::EncodeBy(size_t rule, std::string_view part, Scratch& scratch,
                             std::vector<uint32_t>& ids) const {
  if (rule == json_.rules.size()) {
    EncodeWord(part, scratch, ids);
    return;
  }
  const WordRule& how = json_.rules[rule];
  std::string prefixed;
  if (how.adds_prefix_space && part[0] != ' ') {
    prefixed.reserve(part.size() + 1);
    prefixed += ' ';
    prefixed += part;
    part = prefixed;
  }
  if (!how.pattern) {
    EncodeBy(rule + 1, part, scratch, ids);
    return;
  }
  DivideByRule(how, part, scratch.regex, [&](size_t begin, size_t end) {
    EncodeBy(rule + 1, part.substr(begin, end - begin), scratch, ids);
  });
}

void JsonTokenizer::EncodeNormalized(std::string_view text, Scratch& scratch,
                                     std::vector<uint32_t>& ids) const {
  std::string normalized;
  if (json_.is_normalized && !IsSurelyNfc(text)) {
    normalized = ToNfc(text);
    text = normalized;
  }
  if (added_normalized_.empty()) {
    EncodeBy(0, text, scratch, ids);
    return;
  }
  for (const TextPart& part : added_normalized_.Divide(text, scratch.regex)) {
    if (part.id != TextPart::kNoToken) {
      ids.push_back(part.id);
    } else {
      EncodeBy(0, text.substr(part.begin, part.end - part.begin), scratch, ids);
    }
  }
}

void JsonTokenizer::Encode(std::string_view text, SpecialTokens special,
                           std::vector<uint32_t>& ids) const {
  CheckIsUtf8(text);
  const Lease lease(*this);
  Scratch& scratch = *lease;
  scratch.regex.SetTextBytes(text.size());
  const bool is_added = special == SpecialTokens::kAdded;
  if (is_added) {
    ids.insert(ids.end(), json_.before_text.begin(), json_.before_text.end());
  }
  for (const TextPart& part : added_.Divide(text, scratch.regex)) {
    if (part.id != TextPart::kNoToken) {
      ids.push_back(part.id);
    } else {
      EncodeNormalized(text.substr(part.begin, part.end - part.begin), scratch, ids);
    }
  }
  if (is_added) {
    ids.insert(ids.end(), json_.behind_text.begin(), json_.behind_text.end());
  }
}

std::string JsonTokenizer::Decode(const std::vector<uint32_t>& ids) const {
  CheckIds(ids);
  std::string text;
  for (const uint32_t id : ids) {
    const auto found = std::lower_bound(json_.bytes_of.begin(), json_.bytes_of.end(), id,
                                        [](const std::pair<uint32_t, std::string>& each,
                                           uint32_t value) { return each.first < value; });
    if (found != json_.bytes_of.end() && found->first == id) {
      text += found->second;
    }
  }
  return text;
}

std::optional<uint32_t> JsonTokenizer::FindToken(std::string_view token) const {
  const auto added = std::find_if(json_.added_tokens.begin(), json_.added_tokens.end(),
                                  [&](const AddedToken& each) { return each.content == token; });
  if (added != json_.added_tokens.end()) {
    return added->id;
  }
  const auto known = std::find_if(json_.bytes_of.begin(), json_.bytes_of.end(),
                                  [&](const auto& each) { return each.second == token; });
  return known != json_.bytes_of.end() ? std::optional(known->first) : std::nullopt;
}

}  // namespace

std::unique_ptr<const Tokenizer> MakeJsonTokenizer(std::string_view content,
                                                   const std::string& source) {
  return std::make_unique<const JsonTokenizer>(ParseTokenizerJson(content, source),
                                               IdentityOf("tokenizer.json", content));
}

}  // namespace fsdprun::worker
