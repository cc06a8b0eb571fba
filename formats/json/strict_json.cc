#include "formats/json/strict_json.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

namespace fsdprun {
namespace {

constexpr size_t kMaxJsonBytes = size_t{64} << 20;
constexpr int kMaxDepth = 64;  // the library frees nested values recursively

std::string OneLine(std::string message) {
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, '?');
  return message;
}

std::string Position(std::string_view text, size_t byte) {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i + 1 < byte && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return std::to_string(line) + ":" + std::to_string(column);
}

/// The library's text without its own prefix and position.
std::string Cause(const nlohmann::json::parse_error& error) {
  std::string text = error.what();
  for (std::string_view marker : {std::string_view("column "), std::string_view("parse error")}) {
    const size_t at = text.find(marker);
    const size_t colon = at == std::string::npos ? at : text.find(": ", at);
    if (colon != std::string::npos) {
      return text.substr(colon + 2);
    }
  }
  return text;
}

/// Tracks the keys of every open object and finds the first duplicate.
class DuplicateKeys {
 public:
  template <class Document>
  bool operator()(typename Document::parse_event_t event, const Document& parsed) {
    if (event == Document::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Document::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Document::parse_event_t::key && first_.empty()) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!open_.back().insert(key).second) {
        first_ = key;
        found_ = true;
      }
    }
    return true;
  }
  bool found() const { return found_; }
  const std::string& first() const { return first_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string first_;
  bool found_ = false;
};

template <class Document>
Document ParseStrict(std::string_view text, const std::string& source, JsonComments comments) {
  // The library treats a zero byte as the end of the text and would ignore the rest.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw ConfigError(source + ":" + Position(text, zero + 1) + ": not valid JSON: a zero byte");
  }
  DuplicateKeys duplicates;
  Document document;
  try {
    document = Document::parse(
        text.begin(), text.end(),
        [&](int depth, typename Document::parse_event_t event, Document& parsed) {
          if (depth > kMaxDepth) {
            throw ConfigError(source + ": nested deeper than " + std::to_string(kMaxDepth));
          }
          return duplicates(event, parsed);
        },
        /*allow_exceptions=*/true, /*ignore_comments=*/comments == JsonComments::kIgnored);
  } catch (const Json::parse_error& error) {
    throw ConfigError(source + ":" + Position(text, error.byte) +
                      ": not valid JSON: " + Cause(error));
  } catch (const Json::exception& error) {
    const std::string_view text_of_error = error.what();
    const size_t end_of_prefix = text_of_error.find("] ");
    throw ConfigError(source + ": not valid JSON: " +
                      std::string(text_of_error.substr(
                          end_of_prefix == std::string_view::npos ? 0 : end_of_prefix + 2)));
  }
  if (duplicates.found()) {
    throw ConfigError(source + ": key \"" + duplicates.first() + "\" occurs twice in one object");
  }
  return document;
}

}  // namespace

ConfigError::ConfigError(std::string message) : std::runtime_error(OneLine(std::move(message))) {}

Json ParseStrictJson(std::string_view text, const std::string& source, JsonComments comments) {
  return ParseStrict<Json>(text, source, comments);
}

LookupJson ParseLargeJson(std::string_view text, const std::string& source) {
  return ParseStrict<LookupJson>(text, source, JsonComments::kRefused);
}

std::string ReadSmallFile(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code status;
  const auto type = std::filesystem::status(path, status).type();
  if (type == std::filesystem::file_type::not_found || status) {
    throw ConfigError("cannot read " + path.string() + ": " +
                      (status ? status.message() : std::strerror(ENOENT)));
  }
  if (type != std::filesystem::file_type::regular) {
    throw ConfigError(
        "cannot read " + path.string() + ": it is " +
        (type == std::filesystem::file_type::directory ? "a directory" : "no regular file"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw ConfigError("cannot read " + path.string() + ": " + std::strerror(errno));
  }
  std::string content;
  std::vector<char> chunk(size_t{1} << 16);
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), in.gcount() > 0) {
    content.append(chunk.data(), static_cast<size_t>(in.gcount()));
    if (content.size() > max_bytes) {
      throw ConfigError("cannot read " + path.string() + ": larger than " +
                        std::to_string(max_bytes) + " bytes");
    }
  }
  return content;
}

Json ReadStrictJsonFile(const std::filesystem::path& path, JsonComments comments) {
  return ParseStrictJson(ReadSmallFile(path, kMaxJsonBytes), path.string(), comments);
}

std::string Excerpt(const Json& value) {
  constexpr size_t kMaxCharacters = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxCharacters) {
    text = text.substr(0, kMaxCharacters - 3) + "...";
  }
  return text;
}

}  // namespace fsdprun
