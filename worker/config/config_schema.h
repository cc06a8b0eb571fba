#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

enum class ValueKind {
  kString,
  kInteger,
  kNumber,
  kBoolean,
  kStringList,
  kIntegerList,
  kBetas,
  kMixture,
  // Or the word "all-linear".
  kNamesOrAllLinear,
  // Or the word "auto".
  kIntegerOrAuto,
  kNumberOrAuto,
  kBooleanOrAuto,
};

/// One key of the training configuration. Defaults, validation and `--help` all come from the table
/// of these.
struct ConfigKey {
  std::string_view path;  // "section.name"
  ValueKind kind;
  /// JSON text; empty: the key must be given.
  std::string_view default_value;
  /// What is expected, as worded in error messages: "an integer >= 1".
  std::string_view expectation;
  std::string_view help;
  /// Checks a value of the right type; nullptr: every such value is valid.
  bool (*is_valid)(const Json& value);
};

/// All keys, grouped by section, in the order in which they are printed.
const std::vector<ConfigKey>& ConfigSchema();

/// Defaults of all keys that have one, as nested sections.
Json DefaultConfig();

/// Merges `document` (sections of keys) into `config`. `source` names it in errors. Errors:
/// ConfigError for an unknown section or key (with the nearest known name) and for a section that
/// is not an object.
void MergeConfig(Json& config, const Json& document, const std::string& source);

/// Applies one `a.b=value` to `config`; the value is JSON if it parses as JSON, else a string.
/// Errors: ConfigError.
void ApplyOverride(Json& config, std::string_view assignment);

/// Checks presence, type and range of every key. Errors: ConfigError, one line naming key, value
/// and expectation.
void ValidateConfig(const Json& config);

/// The table as help text: one paragraph per section, two lines per key.
std::string DescribeConfigKeys();

}  // namespace fsdprun::worker
