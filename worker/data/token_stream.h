#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/tokens/token_dtype.h"
#include "formats/tokens/token_file_info.h"
#include "worker/data/data_file.h"

namespace fsdprun::worker {

/// Size of the vocabulary of byte tokens.
inline constexpr int64_t kByteTokens = 256;

/// The ids of one file: where they are and how they are stored.
struct TokenPart {
  std::shared_ptr<const DataFile> file;
  TokenDtype dtype = TokenDtype::kUint8;
  /// Bytes before the first id.
  int64_t offset = 0;
  int64_t tokens = 0;
};

/// What is known of the tokens of a stream.
struct TokenFacts {
  /// Bytes of text.
  bool is_text = true;
  /// Every id has to be less; 0: whatever it is.
  int64_t id_limit = 0;
  /// Stands behind each document.
  std::optional<int64_t> document_end = {};
  /// Where documents end, ascending, if at least one of the files says so; else empty.
  std::vector<int64_t> document_ends = {};
  /// Of files that say so.
  std::optional<TokenizerIdentity> tokenizer = {};
};

/// The files of a data set, in the order given, as one stream of tokens. There is no separator
/// between files. Memory: none to speak of; the page cache is shared by the ranks of a host.
/// Thread: const methods are safe from many.
class TokenStream {
 public:
  /// Of text: token i is the value (0..255) of byte i. Errors: as DataFile's.
  explicit TokenStream(const std::vector<std::string>& paths);
  TokenStream(const std::vector<TokenPart>& parts, TokenFacts facts);

  /// In tokens.
  int64_t size() const { return size_; }
  /// Number of windows of seq_len inputs; each needs one more token for its last target.
  int64_t window_count(int64_t seq_len) const { return size_ <= 0 ? 0 : (size_ - 1) / seq_len; }
  /// Writes tokens [begin, begin + count) to `out`. Precondition: inside the stream. Errors:
  /// DataError; TokenIdError naming file, offset and id.
  void CopyTokens(int64_t begin, int64_t count, int64_t* out) const;

  const TokenFacts& facts() const { return facts_; }
  /// Where files end, ascending; without files that have no tokens.
  std::vector<int64_t> FileEnds() const;

 private:
  struct Part {
    TokenPart tokens;
    int64_t begin = 0;
  };
  /// Tokens [at, at + count) of the part.
  void Read(const TokenPart& part, int64_t at, int64_t count, int64_t* out) const;

  std::vector<Part> parts_;
  TokenFacts facts_;
  int64_t size_ = 0;
};

}  // namespace fsdprun::worker
