#include "worker/tokenize/encode_documents.h"

#include "formats/json/strict_json.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

bool IsBlank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

std::string TextOfJson(const std::string& line, const std::string& key, const std::string& place) {
  const Json object = ParseStrictJson(line, place);
  if (!object.is_object()) {
    throw ConfigError(place + ": " + Excerpt(object) + ": expected a JSON object");
  }
  const auto text = object.find(key);
  if (text == object.end()) {
    throw ConfigError(place + ": the key \"" + key +
                      "\" is missing; name the one that has the text with --text-key");
  }
  if (!text->is_string()) {
    throw ConfigError(place + ": " + key + " = " + Excerpt(*text) + ": expected a text");
  }
  return text->get<std::string>();
}

/// "FILE", or "FILE:LINE" of a file of lines.
std::string PlaceOf(const RawDocuments& documents, size_t index) {
  return documents.format == InputFormat::kText
             ? documents.source
             : documents.source + ":" +
                   std::to_string(documents.first_line + static_cast<int64_t>(index));
}

}  // namespace

EncodedDocuments EncodeDocuments(const RawDocuments& documents, const Tokenizer& tokenizer,
                                 const EncodeOptions& options) {
  EncodedDocuments encoded;
  for (size_t i = 0; i < documents.texts.size(); ++i) {
    const bool is_json = documents.format == InputFormat::kJsonl;
    if (is_json && IsBlank(documents.texts[i])) {
      continue;
    }
    const std::string place = PlaceOf(documents, i);
    const bool is_replaced = options.replaces_invalid_utf8 &&
                             ValidUtf8Bytes(documents.texts[i]) != documents.texts[i].size();
    const std::string made = is_replaced ? ReplaceInvalidUtf8(documents.texts[i]) : std::string();
    const std::string& line = is_replaced ? made : documents.texts[i];
    const std::string from_json =
        is_json ? TextOfJson(line, options.text_key, place) : std::string();
    const std::string& text = is_json ? from_json : line;
    if (text.empty()) {
      // A line without text is what lies between paragraphs, not a document.
      encoded.empty_documents += documents.format == InputFormat::kLines ? 0 : 1;
      continue;
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
  }
  return encoded;
}

}  // namespace fsdprun::worker
