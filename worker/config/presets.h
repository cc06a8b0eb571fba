#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// Settings that go together for one purpose. What a configuration says itself counts before them.
struct Preset {
  std::string_view name;
  /// What it is for, as a phrase.
  std::string_view purpose;
  /// JSON text: sections of keys, as in a configuration file.
  std::string_view settings;
};

/// In the order in which they are listed.
const std::vector<Preset>& Presets();

/// The sections of the preset `name`. `source` names who asks for it. Errors: ConfigError naming
/// the presets that there are.
Json PresetSettings(const std::string& name, const std::string& source);

/// The table as text: a paragraph for each preset, with its settings.
std::string DescribePresets();

}  // namespace fsdprun::worker
