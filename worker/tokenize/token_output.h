#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/files/output_file.h"
#include "formats/tokens/token_bin_writer.h"
#include "formats/tokens/token_file_info.h"

namespace fsdprun::worker {

/// The formats in which tokens are written.
enum class TokenFormat { kLlmc, kMegatron, kRaw };

/// How the ids of a vocabulary of this size are stored. Pure.
TokenDtype DtypeOf(TokenFormat format, int64_t vocab_size);

/// The name of a file of tokens: PREFIX.bin, or PREFIX_000001.bin of the first of several. Pure.
std::string TokenFileName(const std::string& prefix, bool is_one_of_several, size_t index);

/// Writes documents into files that get their names together, when all of them are whole. Each has
/// its description beside it. Thread: one. Errors: fsdp::archive::Error, as OutputFile's; where a
/// format cannot hold as many tokens.
class TokenOutput {
 public:
  struct Options {
    std::string prefix;
    TokenFormat format = TokenFormat::kLlmc;
    /// The most tokens of one file; 0: all are in one. Only of kLlmc and kRaw.
    int64_t shard_tokens = 0;
    Existing existing = Existing::kRefuse;
    /// What is the same in all descriptions: dtype, vocabulary, document end, tokenizer, sources.
    TokenFileInfo info;
  };

  explicit TokenOutput(Options options);

  void AddDocument(const uint32_t* ids, size_t count);
  int64_t tokens() const { return tokens_; }
  /// Gives the files their names; returns those of the .bin. If that fails for one, those that have
  /// one already are removed.
  std::vector<std::string> Publish();

 private:
  void BeginFile();
  void EndFile();
  void Append(const uint32_t* ids, size_t count);

  Options options_;
  /// Those before the last are whole.
  std::vector<std::unique_ptr<TokenBinWriter>> files_;
  std::vector<int32_t> document_lengths_;  // for an index
  int64_t tokens_ = 0;
};

}  // namespace fsdprun::worker
