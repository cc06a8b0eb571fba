#include "worker/tokenizers/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>

#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kByteIds = 256;
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer(kByteIds, IdentityOf("bytes", "")) {}

  void Encode(std::string_view text, SpecialTokens /*special*/,
              std::vector<uint32_t>& ids) const override {
    // To reserve as much as each text needs would copy all ids before it each time.
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }
  std::string Decode(const std::vector<uint32_t>& ids) const override {
    CheckIds(ids);
    return {ids.begin(), ids.end()};
  }
  std::optional<uint32_t> FindToken(std::string_view token) const override {
    return token.size() == 1 ? std::optional<uint32_t>(static_cast<unsigned char>(token[0]))
                             : std::nullopt;
  }
  std::optional<uint32_t> document_end() const override { return std::nullopt; }
};

}  // namespace

void Tokenizer::CheckIds(const std::vector<uint32_t>& ids) const {
  const auto wrong = std::find_if(ids.begin(), ids.end(),
                                  [this](uint32_t id) { return int64_t{id} >= vocab_size_; });
  if (wrong != ids.end()) {
    throw ConfigError("cannot decode the id " + std::to_string(*wrong) + ": the tokenizer has " +
                      std::to_string(vocab_size_) + "; was the text made with another one?");
  }
}

TokenizerIdentity IdentityOf(const std::string& kind, std::string_view content) {
  char digest[17];
  std::snprintf(digest, sizeof digest, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(content.data(), content.size())));
  return {kind, digest};
}

void CheckIsUtf8(std::string_view text) {
  const size_t valid = ValidUtf8Bytes(text);
  if (valid != text.size()) {
    throw ConfigError("byte " + std::to_string(valid) +
                      " is not UTF-8; convert the text (iconv), or have U+FFFD in place of such "
                      "bytes with --replace-invalid-utf8");
  }
}

std::unique_ptr<const Tokenizer> MakeByteTokenizer() {
  return std::make_unique<const ByteTokenizer>();
}

std::unique_ptr<const Tokenizer> OpenTokenizer(const std::string& name) {
  if (name == "bytes" || name == "byte") {
    return MakeByteTokenizer();
  }
  if (!name.ends_with(".json") && !name.ends_with(".model")) {
    throw ConfigError("tokenizer " + name +
                      ": expected \"bytes\", a tokenizer.json or a SentencePiece .model");
  }
  const std::string content = ReadSmallFile(name, kMaxTokenizerBytes);
  return name.ends_with(".json") ? MakeJsonTokenizer(content, name)
                                 : MakeSentencePieceTokenizer(content, name);
}

}  // namespace fsdprun::worker
