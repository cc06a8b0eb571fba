#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/files/output_file.h"
#include "formats/tokens/llmc_writer.h"
#include "formats/tokens/token_bin_writer.h"
#include "formats/tokens/token_file_info.h"

namespace fsdprun::worker {

/// The formats in which tokens are written.
enum class TokenFormat { kLlmc, kMegatron, kRaw };

/// How the ids of a vocabulary of this size are stored. Pure.
TokenDtype DtypeOf(TokenFormat format, int64_t vocab_size);

/// The name of a file of tokens: PREFIX.bin, or PREFIX_000001.bin of the first of several. Pure.
std::string TokenFileName(const std::string& prefix, bool is_one_of_several, size_t index);

/// What is there of the data set with these names: PREFIX.bin, its description and its index, and
/// the same of PREFIX_000001.bin and so on; sorted. Errors: none; a folder that cannot be listed
/// has nothing.
std::vector<std::string> FilesOfDataSet(const std::string& prefix);

/// Writes documents into files that get their names together, when all of them are whole. Each has
/// its description beside it. A file of kLlmc that is full is followed by another one. Thread: one.
/// Errors: fsdp::archive::Error, as OutputFile's; where a format cannot hold a document; with
/// Existing::kRefuse at once if there is anything of a data set with these names. Memory: 1 MiB,
/// and 4 bytes a document for kMegatron.
class TokenOutput {
 public:
  struct Options {
    std::string prefix;
    TokenFormat format = TokenFormat::kLlmc;
    /// The most tokens of one file; 0: as many as the format can hold. Not of kMegatron.
    int64_t shard_tokens = 0;
    Existing existing = Existing::kRefuse;
    /// What is the same in all descriptions: dtype, vocabulary, document end, tokenizer, sources.
    TokenFileInfo info;
    /// What kLlmc can hold.
    int64_t most_llmc_tokens = kLlmcMostTokens;
  };

  explicit TokenOutput(Options options);

  const std::string& prefix() const { return options_.prefix; }
  void AddDocument(const uint32_t* ids, size_t count);
  int64_t tokens() const { return tokens_; }
  /// Gives the files their names, all or none; returns those of the .bin. Old files of the data set
  /// that would be read with them, or in place of them, are removed.
  std::vector<std::string> Publish();

 private:
  struct File {
    File(const std::string& path, const Options& options);
    TokenBinWriter data;
    std::unique_ptr<OutputFile> description;  // once the data are whole
  };

  int64_t MostTokensOfFile() const;
  size_t Room() const;
  void BeginFile();
  void EndFile();
  void Append(const uint32_t* ids, size_t count);
  std::vector<std::string> StaleFiles(const std::vector<OutputFile*>& written) const;

  Options options_;
  bool is_numbered_;  // the files are PREFIX_000001.bin and so on
  /// Those before the last are whole.
  std::vector<std::unique_ptr<File>> files_;
  std::vector<int32_t> document_lengths_;  // for an index
  int64_t tokens_ = 0;
};

}  // namespace fsdprun::worker
