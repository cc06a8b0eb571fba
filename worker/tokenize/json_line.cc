#include "worker/tokenize/json_line.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kMostQuoted = 100;

/// Takes the value of one key of the outermost object, and keeps nothing else.
class TextOfKey : public nlohmann::json_sax<nlohmann::json> {
 public:
  TextOfKey(const std::string& wanted, const std::string& place) : wanted_(wanted), place_(place) {}

  bool null() override {
    Scalar("null");
    return true;
  }
  bool boolean(bool value) override {
    Scalar(value ? "true" : "false");
    return true;
  }
  bool number_integer(number_integer_t value) override {
    Scalar(std::to_string(value));
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    Scalar(std::to_string(value));
    return true;
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    Scalar(text);
    return true;
  }
  bool string(string_t& value) override {
    if (TakesValue()) {
      text_ = std::move(value);
    } else {
      Scalar("a text");
    }
    return true;
  }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*count*/) override {
    if (depth_ > 0) {
      Scalar("an object");
    }
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      is_wanted_ = name == wanted_;
      if (is_wanted_ && is_found_) {
        throw ConfigError(place_ + ": the key \"" + wanted_ + "\" occurs twice");
      }
      is_found_ = is_found_ || is_wanted_;
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*count*/) override {
    Scalar("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    const std::string text = error.what();
    const size_t quoted = std::min(text.find("; last read"), text.size());
    const size_t colon = text.rfind(": ", quoted);
    const size_t begin = colon == std::string::npos ? 0 : colon + 2;
    // The library quotes a string as a whole.
    const size_t end = text.size() - quoted > kMostQuoted ? quoted : text.size();
    syntax_error_ = place_ + ":" + std::to_string(position) +
                    ": not valid JSON: " + text.substr(begin, end - begin);
    return false;
  }

  const std::string& syntax_error() const { return syntax_error_; }
  std::string TakeText() {
    if (!is_found_) {
      throw ConfigError(place_ + ": the key \"" + wanted_ +
                        "\" is missing; name the one that has the text with --text-key");
    }
    return std::move(text_);
  }

 private:
  /// Whether what comes is the value of the key.
  bool TakesValue() { return depth_ == 1 && is_wanted_; }
  /// A value that is no text, or not that of the key.
  void Scalar(const std::string& what) {
    if (depth_ == 0) {
      throw ConfigError(place_ + ": " + what + ": expected a JSON object");
    }
    if (TakesValue() && what != "null") {
      throw ConfigError(place_ + ": " + wanted_ + " = " + what + ": expected a text");
    }
  }

  const std::string& wanted_;
  const std::string& place_;
  int64_t depth_ = 0;
  bool is_wanted_ = false;  // of the key before the value that comes
  bool is_found_ = false;
  std::string text_;
  std::string syntax_error_;
};

/// None: it is no JSON, as `syntax_error` says.
std::optional<std::string> TextOf(std::string_view line, const std::string& key,
                                  const std::string& place, std::string& syntax_error) {
  TextOfKey reader(key, place);
  if (!nlohmann::json::sax_parse(line.begin(), line.end(), &reader)) {
    syntax_error = reader.syntax_error();
    return std::nullopt;
  }
  return reader.TakeText();
}

/// The number of a \uXXXX at the start of `text`; none if it is something else.
std::optional<uint32_t> EscapedUnit(std::string_view text) {
  uint32_t unit = 0;
  if (!text.starts_with("\\u") || text.size() < 6) {
    return std::nullopt;
  }
  const char* end = text.data() + 6;
  const auto [parsed, error] = std::from_chars(text.data() + 2, end, unit, 16);
  return error == std::errc() && parsed == end ? std::optional(unit) : std::nullopt;
}

bool IsBetween(std::optional<uint32_t> unit, uint32_t low, uint32_t high) {
  return unit && *unit >= low && *unit <= high;
}

/// How long a string is that begins with `text`, with `out` for what it becomes: the same, but with
/// `replacement` for each half of a surrogate pair.
size_t CopyString(std::string_view text, std::string_view replacement, std::string& out) {
  size_t at = 1;
  out += '"';
  while (at < text.size() && text[at] != '"') {
    const std::optional<uint32_t> unit = EscapedUnit(text.substr(at));
    const bool is_high = IsBetween(unit, 0xd800, 0xdbff);
    const bool is_pair = is_high && IsBetween(EscapedUnit(text.substr(at + 6)), 0xdc00, 0xdfff);
    if (IsBetween(unit, 0xd800, 0xdfff) && !is_pair) {
      out += replacement;
      at += 6;
      continue;
    }
    const size_t count =
        std::min(is_pair ? 12 : size_t{text[at] == '\\' ? 2U : 1U}, text.size() - at);
    out += text.substr(at, count);
    at += count;
  }
  if (at < text.size()) {
    out += '"';
    ++at;
  }
  return at;
}

/// A word outside of strings, as JSON has it where that is another one.
std::string_view JsonWord(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") {
    return "null";
  }
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool is_too_large = error == std::errc::result_out_of_range;
  return is_too_large && end == word.data() + word.size() ? "0" : word;
}

/// `line` in JSON, where it has what only Python writes.
std::string WithoutPythonsOwn(std::string_view line, std::string_view replacement) {
  constexpr std::string_view kOfWords =
      "+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string out;
  out.reserve(line.size());
  while (!line.empty()) {
    size_t count = 1;
    if (line[0] == '"') {
      count = CopyString(line, replacement, out);
    } else if (kOfWords.find(line[0]) != std::string_view::npos) {
      count = std::min(line.find_first_not_of(kOfWords), line.size());
      out += JsonWord(line.substr(0, count));
    } else {
      out += line[0];
    }
    line.remove_prefix(count);
  }
  return out;
}

}  // namespace

JsonLineText ReadJsonLine(std::string_view line, const std::string& key, bool replaces_surrogates,
                          const std::string& place) {
  // The library takes a zero byte for the end.
  if (const size_t zero = line.find('\0'); zero != std::string_view::npos) {
    throw ConfigError(place + ":" + std::to_string(zero + 1) + ": not valid JSON: a zero byte");
  }
  std::string syntax_error;
  if (std::optional<std::string> text = TextOf(line, key, place, syntax_error)) {
    return {std::move(*text), false};
  }
  std::string ignored;
  std::optional<std::string> text = TextOf(WithoutPythonsOwn(line, "\\ufffd"), key, place, ignored);
  if (!text) {
    throw ConfigError(syntax_error);
  }
  // Whether it is in this text that something was replaced.
  const bool is_replaced = TextOf(WithoutPythonsOwn(line, ""), key, place, ignored) != text;
  if (is_replaced && !replaces_surrogates) {
    throw ConfigError(place + ": " + key +
                      " has half a surrogate pair, such as \"\\ud83d\", which is no character; "
                      "have U+FFFD in its place with --replace-invalid-utf8, or leave such lines "
                      "out with --skip-bad-lines");
  }
  return {std::move(*text), is_replaced};
}

}  // namespace fsdprun::worker
