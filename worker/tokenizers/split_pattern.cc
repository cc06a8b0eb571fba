#include "worker/tokenizers/split_pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "formats/json/strict_json.h"
#include "worker/tokenizers/code_points.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr int kMaxGroups = 100;  // within each other
constexpr int64_t kMaxRepeats = 1000;

bool IsPunctuation(uint32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~') || c == ' ';
}

int HexDigit(uint32_t c) {
  if (c >= '0' && c <= '9') {
    return static_cast<int>(c - '0');
  }
  const uint32_t lower = c | 0x20;
  return lower >= 'a' && lower <= 'f' ? static_cast<int>(lower - 'a') + 10 : -1;
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& source)
      : pattern_(pattern), source_(source) {}

  std::string Translate() {
    if (pattern_.size() > kMaxPatternBytes) {
      throw ConfigError(source_ + ": a pattern of " + std::to_string(pattern_.size()) +
                        " bytes: expected at most " + std::to_string(kMaxPatternBytes));
    }
    Alternatives(/*is_caseless=*/false);
    if (!AtEnd()) {
      Refuse("a ) without its (");
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw ConfigError(source_ + ": the pattern " + std::string(pattern_) + " has, at its byte " +
                      std::to_string(at_) + ", " + what + ", which is not supported");
  }
  bool AtEnd() const { return at_ == pattern_.size(); }
  /// A byte of the rest; 0 behind the end.
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool Take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) {
      return false;
    }
    at_ += text.size();
    return true;
  }
  uint32_t TakeCodePoint() {
    utf8proc_int32_t code_point = -1;
    const auto rest = pattern_.substr(at_);
    const utf8proc_ssize_t length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(rest.data()),
                         static_cast<utf8proc_ssize_t>(rest.size()), &code_point);
    if (length <= 0) {
      Refuse("what is not UTF-8");
    }
    at_ += static_cast<size_t>(length);
    return static_cast<uint32_t>(code_point);
  }

  void Alternatives(bool is_caseless) {
    while (!AtEnd() && Peek() != ')') {
      if (Take("|")) {
        out_ += '|';
        last_letter_ = 0;
      } else {
        Repeated(is_caseless);
      }
    }
  }

  void Repeated(bool is_caseless) {
    const bool may_repeat = Atom(is_caseless);
    if (std::string_view("?*+{").find(Peek()) == std::string_view::npos || AtEnd()) {
      return;
    }
    if (!may_repeat) {
      Refuse("an assertion that is repeated");
    }
    last_letter_ = 0;
    const bool is_counted = Peek() == '{';
    const bool is_exact = is_counted && Count();
    if (!is_counted) {
      out_ += pattern_[at_++];
    }
    if (Peek() == '?' && !is_exact) {
      out_ += pattern_[at_++];
    } else if (Peek() == '+' && !is_counted) {
      out_ += pattern_[at_++];
    }
    if (!AtEnd() && std::string_view("?*+{").find(Peek()) != std::string_view::npos) {
      Refuse("a repetition of a repetition");
    }
  }

  std::optional<int64_t> Number() {
    if (Peek() < '0' || Peek() > '9') {
      return std::nullopt;
    }
    int64_t value = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      value = value * 10 + (pattern_[at_++] - '0');
      if (value > kMaxRepeats) {
        Refuse("a number above " + std::to_string(kMaxRepeats));
      }
    }
    return value;
  }

  /// {n}, {n,}, {n,m} and {,m}; true for the first.
  bool Count() {
    ++at_;
    const std::optional<int64_t> least = Number();
    const bool is_exact = !Take(",");
    const std::optional<int64_t> most = is_exact ? least : Number();
    if ((!least && !most) || !Take("}")) {
      Refuse("a { that begins no repetition");
    }
    if (most && *most < least.value_or(0)) {
      Refuse("a repetition of more than its most");
    }
    out_ += '{' + std::to_string(least.value_or(0));
    if (!is_exact) {
      out_ += ',' + (most ? std::to_string(*most) : std::string());
    }
    out_ += '}';
    return is_exact;
  }

  /// False for what is not repeated.
  bool Atom(bool is_caseless) {
    const char c = Peek();
    if (c != '\\' && c != '(' && std::string_view("?*+{^$").find(c) != std::string_view::npos &&
        c != '\0') {
      Refuse(std::string(1, c));
    }
    if (c == '(') {
      return Group(is_caseless);
    }
    if (c == '[' || c == '.' || (c == '\\' && IsClassEscape())) {
      if (is_caseless) {
        Refuse("a class of characters within (?i:");
      }
      last_letter_ = 0;
      c == '[' ? Class() : SingleClass();
      return true;
    }
    const uint32_t code_point = c == '\\' ? EscapedCodePoint() : TakeCodePoint();
    if (is_caseless) {
      CheckCaseless(code_point);
    }
    AppendCodePoint(code_point, out_);
    return true;
  }

  /// Letters that Oniguruma takes together for one character, such as the sharp s, and letters
  /// whose other cases depend on the version of Unicode.
  void CheckCaseless(uint32_t code_point) {
    if (code_point >= 0x80) {
      Refuse("a character beyond ASCII within (?i:");
    }
    const char letter = static_cast<char>(code_point | 0x20);
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
      if (pair[0] == last_letter_ && pair[1] == letter) {
        Refuse("\"" + std::string(pair) + "\" within (?i:");
      }
    }
    last_letter_ = letter;
  }

  bool Group(bool is_caseless) {
    ++at_;
    last_letter_ = 0;
    std::string_view opening = "(?:";
    bool may_repeat = true;
    if (Peek() == '?') {
      const std::pair<std::string_view, bool> kinds[] = {
          {"?:", true},  {"?>", true},   {"?i:", true}, {"?=", false},
          {"?!", false}, {"?<=", false}, {"?<!", false}};
      const auto* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                      [&](const auto& each) { return Take(each.first); });
      if (kind == std::end(kinds)) {
        Refuse("a group of this kind");
      }
      opening = kind->first;
      may_repeat = kind->second;
      out_ += '(';
    }
    out_ += opening;
    if (++depth_ > kMaxGroups) {
      Refuse("more than " + std::to_string(kMaxGroups) + " groups within each other");
    }
    Alternatives(is_caseless || opening == "?i:");
    --depth_;
    if (!Take(")")) {
      Refuse("an end before the ) of a group");
    }
    out_ += ')';
    last_letter_ = 0;
    return may_repeat;
  }

  /// At a backslash: whether it begins a class such as \s.
  bool IsClassEscape() const {
    return std::string_view("sSdDpP").find(Peek(1)) != std::string_view::npos && Peek(1) != '\0';
  }

  /// . \s \S \d \D \p{..} \P{..} as a class of its own.
  void SingleClass() {
    if (Take(".")) {
      out_ += "[^\\n]";
      return;
    }
    std::string inside;
    const bool is_negative = ClassEscape(inside);
    out_ += is_negative ? "[^" + inside + "]" : "[" + inside + "]";
  }

  /// Reads \s and the like, and appends what is in it, or, if true is returned, what is not.
  bool ClassEscape(std::string& inside) {
    const char kind = Peek(1);
    at_ += 2;
    bool is_negative = kind == 'S' || kind == 'D' || kind == 'P';
    if (kind == 's' || kind == 'S') {
      AppendWhiteSpace(inside);
    } else if (kind == 'd' || kind == 'D') {
      AppendProperty("Nd", inside);
    } else {
      const size_t end = pattern_.find('}', at_);
      if (!Take("{") || end == std::string_view::npos) {
        Refuse("a property without { }");
      }
      is_negative = Take("^") != is_negative;
      const std::string name(pattern_.substr(at_, end - at_));
      if (!AppendProperty(name, inside)) {
        Refuse("the property \"" + name + "\"");
      }
      at_ = end + 1;
    }
    return is_negative;
  }

  uint32_t EscapedCodePoint() {
    constexpr std::pair<char, uint32_t> kControls[] = {
        {'t', '\t'}, {'n', '\n'}, {'v', '\v'}, {'f', '\f'}, {'r', '\r'}, {'a', '\a'}, {'e', 0x1b}};
    const char kind = Peek(1);
    for (const auto& [letter, value] : kControls) {
      if (kind == letter) {
        at_ += 2;
        return value;
      }
    }
    if (kind == 'x' || kind == 'u') {
      return HexCodePoint(kind);
    }
    if (!IsPunctuation(static_cast<unsigned char>(kind))) {
      Refuse(std::string("\\") + kind);
    }
    at_ += 2;
    return static_cast<unsigned char>(kind);
  }

  /// \xHH, \x{H..} and \uHHHH.
  uint32_t HexCodePoint(char kind) {
    at_ += 2;
    const bool is_braced = kind == 'x' && Take("{");
    const int least = is_braced ? 1 : kind == 'x' ? 2 : 4;
    const int most = is_braced ? 6 : least;
    uint32_t value = 0;
    int digits = 0;
    for (; digits < most && HexDigit(static_cast<unsigned char>(Peek())) >= 0; ++digits) {
      value = value * 16 + static_cast<uint32_t>(HexDigit(static_cast<unsigned char>(Peek())));
      ++at_;
    }
    const bool is_byte_only = kind == 'x' && !is_braced && value >= 0x80;
    if (digits < least || (is_braced && !Take("}")) || is_byte_only ||
        !utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(value))) {
      Refuse("a number that is no character");
    }
    return value;
  }

  void Class() {
    ++at_;
    out_ += Take("^") ? "[^" : "[";
    if (Peek() == ']') {
      Refuse("a class of nothing");
    }
    while (Peek() != ']') {
      if (AtEnd()) {
        Refuse("an end before the ] of a class");
      }
      ClassItem();
    }
    ++at_;
    out_ += ']';
  }

  void ClassItem() {
    if (Peek() == '[' || Take("&&")) {
      Refuse("a class within a class");
    }
    if (Peek() == '\\' && IsClassEscape()) {
      if (ClassEscape(out_)) {
        Refuse("a negative class within a class");
      }
      RefuseRange();
      return;
    }
    const uint32_t first = Peek() == '\\' ? EscapedCodePoint() : TakeCodePoint();
    AppendCodePoint(first, out_);
    if (Peek() != '-' || Peek(1) == ']') {
      return;
    }
    ++at_;
    if (Peek() == '[' || (Peek() == '\\' && IsClassEscape())) {
      Refuse("a range to a class");
    }
    const uint32_t last = Peek() == '\\' ? EscapedCodePoint() : TakeCodePoint();
    if (last < first) {
      Refuse("a range that ends before it begins");
    }
    out_ += '-';
    AppendCodePoint(last, out_);
    RefuseRange();
  }

  /// Behind a class or a range.
  void RefuseRange() const {
    if (Peek() == '-' && Peek(1) != ']') {
      Refuse("a - that may begin a range");
    }
  }

  std::string_view pattern_;
  const std::string& source_;
  std::string out_;
  size_t at_ = 0;
  int depth_ = 0;
  char last_letter_ = 0;  // within (?i:, if a letter was the last thing
};

}  // namespace

std::string TranslateSplitPattern(std::string_view pattern, const std::string& source) {
  return Translator(pattern, source).Translate();
}

std::string QuoteForPattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (IsPunctuation(static_cast<unsigned char>(c))) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

}  // namespace fsdprun::worker
