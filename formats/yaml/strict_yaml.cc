#include "formats/yaml/strict_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

namespace fsdprun {
namespace {

constexpr size_t kDepthMax = 16;
constexpr size_t kShownBytesMax = 60;

bool IsOneOf(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

std::string Shown(const std::string& text) {
  std::string shown(text, 0, kShownBytesMax);
  return text.size() <= kShownBytesMax ? shown : shown.append("...");
}

/// Builds the tree, and refuses what is not plain as soon as it comes.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& source) : source_(source) {}

  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      Fail(mark, "a second document begins here: expected one");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Check(mark, "", anchor);
    Add(mark, NodeAt(mark, YamlNode::Kind::kNull));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    Fail(mark, "an alias (*name): write the value itself");
  }
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    Fail(mark, "an anchor (&" + Shown(name) + "): write the value without it");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Check(mark, tag, anchor);
    YamlNode node = NodeAt(mark, YamlNode::Kind::kScalar);
    node.text = value;
    node.is_quoted = tag == "!";
    Add(mark, std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Check(mark, tag, anchor);
    Open(mark, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Check(mark, tag, anchor);
    Open(mark, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    YamlNode node;
    YAML::Mark mark;
    std::optional<YamlField> field;    // whose value comes next
    std::map<std::string, int> lines;  // of the keys so far
  };

  [[noreturn]] void Fail(const YAML::Mark& mark, const std::string& what) const {
    throw ConfigError(source_ + ":" + std::to_string(std::max(mark.line, 0) + 1) + ": " + what);
  }

  /// "?" and "!" say whether the scalar was plain or quoted; a list or map has "?" without a tag.
  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (!IsOneOf(tag, {"", "?", "!"})) {
      Fail(mark, "a tag (" + Shown(tag) + "): nothing is made by tags; write the plain value");
    }
    if (anchor != YAML::NullAnchor) {
      Fail(mark, "an anchor (&name): write the value without it");
    }
  }

  static YamlNode NodeAt(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = std::max(mark.line, 0) + 1;
    return node;
  }

  void Open(const YAML::Mark& mark, YamlNode::Kind kind) {
    if (!levels_.empty() && levels_.back().node.kind == YamlNode::Kind::kMap &&
        !levels_.back().field) {
      Fail(mark, "a list or a map as a key: expected a text");
    }
    if (levels_.size() == kDepthMax) {
      Fail(mark, "nested deeper than " + std::to_string(kDepthMax));
    }
    levels_.push_back({NodeAt(mark, kind), mark, std::nullopt, {}});
  }

  void Close() {
    Level done = std::move(levels_.back());
    levels_.pop_back();
    Add(done.mark, std::move(done.node));
  }

  void Add(const YAML::Mark& mark, YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kList) {
      level.node.items.push_back(std::move(node));
    } else if (level.field) {
      level.field->value = std::move(node);
      level.node.fields.push_back(*std::move(level.field));
      level.field.reset();
    } else {
      AddKey(mark, std::move(node), level);
    }
  }

  void AddKey(const YAML::Mark& mark, YamlNode key, Level& level) {
    if (key.kind != YamlNode::Kind::kScalar) {
      Fail(mark, "a key without a text");
    }
    const auto [first, is_new] = level.lines.try_emplace(key.text, key.line);
    if (!is_new) {
      Fail(mark, "the key " + Shown(key.text) + " is there twice, first in line " +
                     std::to_string(first->second));
    }
    level.field.emplace(YamlField{std::move(key.text), key.line, {}});
  }

  const std::string& source_;
  int documents_ = 0;
  std::vector<Level> levels_;
  YamlNode root_;
};

void CheckBytes(std::string_view text, const std::string& source) {
  if (text.size() > kYamlBytesMax) {
    throw ConfigError(source + ": larger than " + std::to_string(kYamlBytesMax) + " bytes");
  }
  // Which would be taken for another encoding, or for the end.
  const auto bad = std::find_if(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0xfe || c == '\0' || c == '\4';
  });
  if (bad != text.end()) {
    throw ConfigError(source + ":" + std::to_string(1 + std::count(text.begin(), bad, '\n')) +
                      ": a byte that no UTF-8 text has");
  }
}

/// Of an integer without sign: takes away what names the base.
int TakeBase(std::string_view& digits) {
  if (digits.starts_with("0x") || digits.starts_with("0b")) {
    const int base = digits[1] == 'x' ? 16 : 2;
    digits.remove_prefix(2);
    return base;
  }
  return digits.size() > 1 && digits.front() == '0' ? 8 : 10;
}

/// Whether a number of this base can begin so.
bool IsDigit(char c, int base) {
  int value = 0;
  return std::from_chars(&c, &c + 1, value, base).ptr == &c + 1;
}

}  // namespace

std::optional<bool> YamlNode::AsBool() const {
  if (kind != Kind::kScalar) {
    return std::nullopt;
  }
  if (IsOneOf(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) {
    return true;
  }
  if (IsOneOf(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) {
    return false;
  }
  return std::nullopt;
}

std::optional<int64_t> YamlNode::AsInteger() const {
  std::string_view digits = text;
  const bool is_negative = digits.starts_with('-');
  digits.remove_prefix(is_negative || digits.starts_with('+') ? 1 : 0);
  const int base = TakeBase(digits);
  if (kind != Kind::kScalar || digits.empty() || !IsDigit(digits.front(), base)) {
    return std::nullopt;
  }
  std::string plain(is_negative ? "-" : "");
  std::remove_copy(digits.begin(), digits.end(), std::back_inserter(plain), '_');
  int64_t value = 0;
  const char* const past = plain.data() + plain.size();
  const auto [end, error] = std::from_chars(plain.data(), past, value, base);
  return error == std::errc() && end == past ? std::optional(value) : std::nullopt;
}

YamlNode ParseStrictYaml(std::string_view text, const std::string& source) {
  CheckBytes(text, source);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(source);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    throw ConfigError(source + ":" + std::to_string(std::max(error.mark.line, 0) + 1) + ": " +
                      error.msg);
  }
  return builder.Take();
}

}  // namespace fsdprun
