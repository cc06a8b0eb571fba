#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokens/token_file_info.h"

namespace fsdprun::worker {

/// Makes ids of text, and text of ids. Thread: any.
class Tokenizer {
 public:
  /// Whether a text gets what the tokenizer puts around each, such as an id that begins it.
  enum class SpecialTokens { kOmitted, kAdded };

  virtual ~Tokenizer() = default;

  /// Appends the ids of a document. Errors: ConfigError naming the byte where `text` is not UTF-8,
  /// which only the tokenizer of bytes takes, or where it cannot be encoded. Memory: some times
  /// that of the text.
  virtual void Encode(std::string_view text, SpecialTokens special,
                      std::vector<uint32_t>& ids) const = 0;
  /// The bytes of the ids, one behind the other. What one id stands for need not be UTF-8. An id
  /// of no token, as a vocabulary with gaps has, is nothing. Errors: ConfigError for an id that is
  /// not below vocab_size().
  virtual std::string Decode(const std::vector<uint32_t>& ids) const = 0;
  /// The id whose text is `token`, also a special one; none without it.
  virtual std::optional<uint32_t> FindToken(std::string_view token) const = 0;
  /// The id that ends a document where text is learned; none if the tokenizer does not say.
  virtual std::optional<uint32_t> document_end() const = 0;

  /// One more than the largest id.
  int64_t vocab_size() const { return vocab_size_; }
  /// Which tokenizer it is: the same for the same file, wherever it is.
  const TokenizerIdentity& identity() const { return identity_; }

 protected:
  Tokenizer(int64_t vocab_size, TokenizerIdentity identity)
      : vocab_size_(vocab_size), identity_(std::move(identity)) {}
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Throws if an id is not below vocab_size().
  void CheckIds(const std::vector<uint32_t>& ids) const;

 private:
  int64_t vocab_size_;
  TokenizerIdentity identity_;
};

/// `name`: "bytes", or "byte" (each byte is the id of its value), or a file: a tokenizer.json (its
/// name ends with .json), or a model of SentencePiece (it ends with .model). Errors: ConfigError
/// naming file, field and what is expected.
std::unique_ptr<const Tokenizer> OpenTokenizer(const std::string& name);

/// From the content of such a file; `source` is its name in errors.
std::unique_ptr<const Tokenizer> MakeJsonTokenizer(std::string_view content,
                                                   const std::string& source);
std::unique_ptr<const Tokenizer> MakeSentencePieceTokenizer(std::string_view content,
                                                            const std::string& source);
std::unique_ptr<const Tokenizer> MakeByteTokenizer();

/// The identity of a tokenizer of this kind and content.
TokenizerIdentity IdentityOf(const std::string& kind, std::string_view content);

/// Throws if `text` is not UTF-8: ConfigError naming the byte and what to do.
void CheckIsUtf8(std::string_view text);

}  // namespace fsdprun::worker
