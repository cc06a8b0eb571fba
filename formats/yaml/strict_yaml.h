#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun {

struct YamlField;

/// A value of a document.
struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  int line = 0;                   // from 1
  std::string text;               // of a scalar
  bool is_quoted = false;         // so the text is a text, whatever it looks like
  std::vector<YamlNode> items;    // of a list
  std::vector<YamlField> fields;  // of a map, in the order of the file

  /// As PyYAML takes them, whose language is YAML 1.1: yes, no, on and off are booleans, too.
  /// nullopt if it is none.
  std::optional<bool> AsBool() const;
  /// As PyYAML takes them, too: 1_000, 0x10, 0b11, and 010 is 8; but not 1:30 for 90. nullopt if it
  /// is none, or beyond int64.
  std::optional<int64_t> AsInteger() const;
};

struct YamlField {
  std::string key;
  int line = 0;
  YamlNode value;
};

/// The largest document that is read.
inline constexpr size_t kYamlBytesMax = size_t{256} << 10;

/// Parses one document of that part of YAML which configurations need: maps with texts as keys,
/// lists, scalars. Nothing is made by a tag, and nothing is there twice: tags, anchors and aliases
/// are errors, and so are a key that occurs twice in a map, nesting deeper than 16, another
/// document, and a text longer than kYamlBytesMax. Errors: ConfigError "<source>:<line>: ...".
YamlNode ParseStrictYaml(std::string_view text, const std::string& source);

}  // namespace fsdprun
