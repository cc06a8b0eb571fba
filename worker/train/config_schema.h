#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker/json/strict_json.h"

namespace fsdprun::worker {

enum class ValueKind { kString, kInteger, kNumber, kBoolean, kStringList, kBetas };

/// One key of the training configuration. The table of these is the only place that knows the keys:
/// defaults, validation, `--help` and the documentation come from it.
struct ConfigKey {
  std::string_view path;  // "section.name"
  ValueKind kind;
  /// JSON text; empty: the key must be given.
  std::string_view default_value;
  /// What a good value is, as the error message says it: "an integer >= 1".
  std::string_view expectation;
  std::string_view help;
  /// Checks a value whose type is right already; nullptr: every such value is good.
  bool (*is_valid)(const Json& value);
};

/// All keys, grouped by section, in the order in which they are printed.
const std::vector<ConfigKey>& ConfigSchema();

/// Defaults of all keys that have one, as nested sections.
Json DefaultConfig();

/// Lays `document` (sections of keys) over `config`. `source` names it in errors. Errors:
/// ConfigError for an unknown section or key (with the nearest known name) and for a section that
/// is not an object.
void MergeConfig(Json& config, const Json& document, const std::string& source);

/// Lays one `a.b=value` over `config`; the value is JSON if it parses as JSON, else a string.
/// Errors: ConfigError.
void ApplyOverride(Json& config, std::string_view assignment);

/// Checks presence, type and range of every key. Errors: ConfigError, one line naming key, value
/// and expectation.
void ValidateConfig(const Json& config);

/// The table for people: one paragraph per section, one line per key.
std::string DescribeConfigKeys();

}  // namespace fsdprun::worker
