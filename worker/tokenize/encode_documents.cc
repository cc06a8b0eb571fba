#include "worker/tokenize/encode_documents.h"

#include <string_view>

#include "formats/json/strict_json.h"
#include "worker/tokenize/json_line.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

bool IsBlank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

/// "FILE", or "FILE:LINE" of a file of lines.
std::string PlaceOf(const RawDocuments& documents, size_t index) {
  return documents.format == InputFormat::kText
             ? documents.source
             : documents.source + ":" +
                   std::to_string(documents.first_line + static_cast<int64_t>(index));
}

void AddDocument(const std::string& raw, InputFormat format, const std::string& place,
                 const Tokenizer& tokenizer, const EncodeOptions& options,
                 EncodedDocuments& encoded) {
  bool is_replaced = options.replaces_invalid_utf8 && ValidUtf8Bytes(raw) != raw.size();
  const std::string made = is_replaced ? ReplaceInvalidUtf8(raw) : std::string();
  std::string_view text = is_replaced ? made : raw;
  JsonLineText of_json;
  if (format == InputFormat::kJsonl) {
    of_json = ReadJsonLine(text, options.text_key, options.replaces_invalid_utf8, place);
    text = of_json.text;
    is_replaced = is_replaced || of_json.is_replaced;
  }
  if (text.empty()) {
    // A line without text is what lies between paragraphs, not a document.
    encoded.empty_documents += format == InputFormat::kLines ? 0 : 1;
    return;
  }
  try {
    tokenizer.Encode(text, options.special, encoded.ids);
  } catch (const ConfigError& error) {
    throw ConfigError("cannot tokenize " + place + ": " + error.what());
  }
  if (options.document_end) {
    encoded.ids.push_back(*options.document_end);
  }
  encoded.ends.push_back(encoded.ids.size());
  encoded.replaced_documents += is_replaced ? 1 : 0;
}

}  // namespace

EncodedDocuments EncodeDocuments(const RawDocuments& documents, const Tokenizer& tokenizer,
                                 const EncodeOptions& options) {
  EncodedDocuments encoded;
  const bool are_lines = documents.format != InputFormat::kText;
  for (size_t i = 0; i < documents.texts.size(); ++i) {
    const std::string& raw = documents.texts[i];
    if (documents.format == InputFormat::kJsonl && IsBlank(raw)) {
      continue;
    }
    try {
      AddDocument(raw, documents.format, PlaceOf(documents, i), tokenizer, options, encoded);
    } catch (const ConfigError& error) {
      if (!options.skips_bad_lines || !are_lines) {
        throw;
      }
      if (encoded.skipped_lines++ == 0) {
        encoded.first_skipped = error.what();
      }
      encoded.ids.resize(encoded.ends.empty() ? 0 : encoded.ends.back());
    }
  }
  return encoded;
}

}  // namespace fsdprun::worker
