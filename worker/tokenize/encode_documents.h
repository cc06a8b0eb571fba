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
  /// U+FFFD stands in place of what is no text: bytes that are not UTF-8, half a surrogate pair.
  bool replaces_invalid_utf8 = false;
  /// Lines of which no document can be made are left out.
  bool skips_bad_lines = false;
};

/// Documents one behind the other.
struct EncodedDocuments {
  std::vector<uint32_t> ids;
  /// Where each ends in `ids`.
  std::vector<size_t> ends;
  /// How many had no text; they are left out.
  int64_t empty_documents = 0;
  /// How many have U+FFFD in place of something.
  int64_t replaced_documents = 0;
  int64_t skipped_lines = 0;
  /// Why the first of them was skipped.
  std::string first_skipped;
};

/// Errors: ConfigError naming source, line (of lines) and what Tokenizer::Encode says; for a line
/// that is no JSON object with the text, as ReadJsonLine's. Pure.
EncodedDocuments EncodeDocuments(const RawDocuments& documents, const Tokenizer& tokenizer,
                                 const EncodeOptions& options);

}  // namespace fsdprun::worker
