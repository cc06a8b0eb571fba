#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokens/token_dtype.h"
#include "formats/tokens/token_file_info.h"
#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// File formats of data.
enum class DataFormat { kText, kLlmc, kMegatron, kDatatrove, kRaw };

/// "text", "llmc", "megatron", "datatrove" or "raw", as data.format spells it.
std::string_view DataFormatName(DataFormat format);
/// None for "auto". Precondition: one of these words.
std::optional<DataFormat> FindDataFormat(std::string_view word);

/// What was given to read data files by.
struct LayoutOptions {
  /// None: as names and contents say.
  std::optional<DataFormat> format = {};
  /// Of files that have nothing but ids; none: as the description beside each says.
  std::optional<TokenDtype> dtype = {};
  /// Whether the ends of documents are wanted.
  bool wants_documents = false;
};

/// One data file, or the two of Megatron's and datatrove's data sets.
struct TokenLayout {
  DataFormat format = DataFormat::kText;
  TokenPart part;
  /// The content of NAME.bin.json, if there is one.
  std::optional<TokenFileInfo> info = {};
  /// Where documents end, in tokens of the file, if they were wanted and an index says it.
  std::optional<std::vector<int64_t>> document_ends = {};
};

/// Opens the data file `path` (of Megatron's also the `.idx` or what both names begin with) and
/// proves that what it says of itself, what is said beside it, and its size agree. Errors:
/// ConfigError naming file, field and offset: what cannot be told, and what does not agree; as
/// DataFile's.
TokenLayout ReadTokenLayout(const std::string& path, const LayoutOptions& options);

}  // namespace fsdprun::worker
