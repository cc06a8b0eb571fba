#pragma once

#include <string>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// Where a configuration comes from: each counts before those above it, and all before the
/// defaults.
struct ConfigSources {
  /// A name of Presets(); empty: the one that the file names as its key "preset", if any.
  std::string preset = {};
  /// Sections that stand for a file of another kind, and the name of that file.
  Json settings = Json::object();
  std::string settings_source = {};
  /// A JSON file, which may have comments; empty: none.
  std::string file = {};
  /// "section.key=value" each, in order.
  std::vector<std::string> overrides = {};
};

/// Merged, not validated: keys that must be given may be null. What the preset says of an optimizer
/// or a schedule that is not chosen is left out. Errors: ConfigError, one line.
Json MergeSources(const ConfigSources& sources);

/// Merged and validated. Errors: as above.
Json ResolveConfig(const ConfigSources& sources);

/// `values` as a configuration file that explains itself: JSON with a comment before each key.
/// Precondition: `values` has all keys, as DefaultConfig().
std::string CommentedConfig(const Json& values);

}  // namespace fsdprun::worker
