#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/token_layout.h"
#include "worker/data/token_stream.h"

namespace fsdprun::worker {

struct OpenOptions {
  LayoutOptions layout;
  /// The id behind each document; none: as the descriptions of the files say.
  std::optional<int64_t> document_end = {};
  /// Of the model; ids have to be less.
  int64_t vocab_size = 0;
  /// Names the list of files in errors: "data.train".
  std::string key;
};

/// Opens files of text, or of tokens in any formats, as one stream in this order. Patterns are
/// expanded. Errors: ConfigError: for text beside tokens, for files that two tokenizers have made,
/// for a vocabulary larger than the model's; as ExpandPaths's and ReadTokenLayout's.
std::shared_ptr<const TokenStream> OpenTokens(const std::vector<std::string>& patterns,
                                              const OpenOptions& options);

}  // namespace fsdprun::worker
