#include "formats/tokens/token_file_info.h"

#include <algorithm>
#include <array>

namespace fsdprun {
namespace {

constexpr std::string_view kTokensFormat = "fsdprun-tokens-1";
constexpr size_t kMaxInfoBytes = size_t{16} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 31;
constexpr size_t kDigestDigits = 16;
constexpr std::array<std::string_view, 7> kInfoKeys = {
    "format", "dtype", "tokens", "vocab_size", "document_end", "tokenizer", "sources"};

/// A value of the document and where it stands, for error messages.
struct InfoField {
  const Json& value;
  std::string name;

  [[noreturn]] void Refuse(const std::string& expectation) const {
    throw ConfigError(name + " = " + Excerpt(value) + ": expected " + expectation);
  }
  std::string Text(const std::string& expectation) const {
    if (!value.is_string()) {
      Refuse(expectation);
    }
    return value.get<std::string>();
  }
  int64_t Integer(int64_t low, int64_t high) const {
    const std::string expectation =
        "an integer from " + std::to_string(low) + " to " + std::to_string(high);
    // A negative number is one of int64; one beyond int64 is unsigned.
    const bool is_small = value.is_number_unsigned()
                              ? value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                              : value.is_number_integer();
    if (!is_small || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      Refuse(expectation);
    }
    return value.get<int64_t>();
  }
};

InfoField InfoFieldOf(const Json& object, std::string_view key, const std::string& prefix) {
  const auto found = object.find(std::string(key));
  if (found == object.end()) {
    throw ConfigError(prefix + std::string(key) + " is missing");
  }
  return {*found, prefix + std::string(key)};
}

template <size_t kCount>
void RefuseUnknownKeys(const Json& object, const std::array<std::string_view, kCount>& keys,
                       const std::string& prefix) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      throw ConfigError(prefix + key + ": unknown key; a newer fsdp-train may have written it");
    }
  }
}

TokenizerIdentity ParseTokenizer(const InfoField& field) {
  if (!field.value.is_object()) {
    field.Refuse("an object with kind and digest");
  }
  const std::string prefix = field.name + ".";
  RefuseUnknownKeys(field.value, std::array<std::string_view, 2>{"kind", "digest"}, prefix);
  const InfoField kind = InfoFieldOf(field.value, "kind", prefix);
  const InfoField digest = InfoFieldOf(field.value, "digest", prefix);
  const std::string kinds = R"("bytes", "tokenizer.json" or "sentencepiece")";
  TokenizerIdentity tokenizer{kind.Text(kinds), digest.Text("16 hexadecimal digits")};
  if (tokenizer.kind != "bytes" && tokenizer.kind != "tokenizer.json" &&
      tokenizer.kind != "sentencepiece") {
    kind.Refuse(kinds);
  }
  if (tokenizer.digest.size() != kDigestDigits ||
      tokenizer.digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
    digest.Refuse("16 hexadecimal digits");
  }
  return tokenizer;
}

std::vector<std::string> ParseSources(const InfoField& field) {
  if (!field.value.is_array()) {
    field.Refuse("a list of paths");
  }
  std::vector<std::string> sources;
  for (const Json& source : field.value) {
    sources.push_back(InfoField{source, field.name}.Text("a list of paths"));
  }
  return sources;
}

}  // namespace

std::string TokenFileInfoPath(const std::string& token_file) { return token_file + ".json"; }

TokenFileInfo ParseTokenFileInfo(const Json& document, const std::string& source) {
  const std::string prefix = source + ": ";
  if (!document.is_object()) {
    throw ConfigError(prefix + "expected a JSON object, the description of a token file");
  }
  const InfoField format = InfoFieldOf(document, "format", prefix);
  if (format.Text("\"fsdprun-tokens-1\"") != kTokensFormat) {
    format.Refuse("\"fsdprun-tokens-1\"; a newer fsdp-train may have written it");
  }
  RefuseUnknownKeys(document, kInfoKeys, prefix);
  TokenFileInfo info;
  const InfoField dtype = InfoFieldOf(document, "dtype", prefix);
  const std::string dtypes = "a type of integers such as \"uint16\" or \"uint32\"";
  if (!FindTokenDtype(dtype.Text(dtypes), info.dtype)) {
    dtype.Refuse(dtypes);
  }
  info.tokens = InfoFieldOf(document, "tokens", prefix).Integer(0, INT64_MAX);
  info.vocab_size = InfoFieldOf(document, "vocab_size", prefix).Integer(1, kMaxVocabulary);
  const InfoField end = InfoFieldOf(document, "document_end", prefix);
  if (!end.value.is_null()) {
    info.document_end = end.Integer(0, info.vocab_size - 1);
  }
  info.tokenizer = ParseTokenizer(InfoFieldOf(document, "tokenizer", prefix));
  info.sources = ParseSources(InfoFieldOf(document, "sources", prefix));
  return info;
}

TokenFileInfo ReadTokenFileInfo(const std::string& path) {
  return ParseTokenFileInfo(ParseStrictJson(ReadSmallFile(path, kMaxInfoBytes), path), path);
}

std::string FormatTokenFileInfo(const TokenFileInfo& info) {
  Json document = Json::object();
  document["format"] = kTokensFormat;
  document["dtype"] = TokenDtypeName(info.dtype);
  document["tokens"] = info.tokens;
  document["vocab_size"] = info.vocab_size;
  document["document_end"] = info.document_end ? Json(*info.document_end) : Json(nullptr);
  document["tokenizer"] = {{"kind", info.tokenizer.kind}, {"digest", info.tokenizer.digest}};
  document["sources"] = info.sources;
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fsdprun
