#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/tokenize/document_reader.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {

/// How documents become ids.
struct EncodeOptions {
  std::string text_key = "text";
  /// Stands behind each document.
  std::optional<uint32_t> document_end;
  Tokenizer::SpecialTokens special = Tokenizer::SpecialTokens::kOmitted;
  bool replaces_invalid_utf8 = false;
};

/// Documents one behind the other.
struct EncodedDocuments {
  std::vector<uint32_t> ids;
  /// Where each ends in `ids`.
  std::vector<size_t> ends;
  /// How many had no text; they are left out.
  int64_t empty_documents = 0;
};

/// Errors: ConfigError naming source, line (of lines) and what Tokenizer::Encode says; for a line
/// that is no JSON object with the text. Pure.
EncodedDocuments EncodeDocuments(const RawDocuments& documents, const Tokenizer& tokenizer,
                                 const EncodeOptions& options);

}  // namespace fsdprun::worker
