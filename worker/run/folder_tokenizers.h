#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdprun::worker {

/// The file of a tokenizer that lies beside a model.
struct FolderTokenizer {
  std::filesystem::path path;
  /// As TokenizerIdentity::digest.
  std::string digest;
};

/// The files tokenizer.json and tokenizer.model of a folder, those that are there. Errors:
/// ConfigError for one that cannot be read, or is too large to be a tokenizer.
std::vector<FolderTokenizer> TokenizersIn(const std::filesystem::path& folder);

}  // namespace fsdprun::worker
