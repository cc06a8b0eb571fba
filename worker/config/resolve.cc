#include "worker/config/resolve.h"

#include <sstream>
#include <string_view>

#include "worker/config/config_schema.h"
#include "worker/config/presets.h"
#include "worker/config/training_rules.h"

namespace fsdprun::worker {
namespace {

constexpr char kPresetKey[] = "preset";
constexpr size_t kLineWidth = 100;

/// Takes the key "preset" out of the file's document.
std::string TakePreset(Json& document, const std::string& source) {
  if (!document.is_object() || !document.contains(kPresetKey)) {
    return "";
  }
  const Json preset = document.at(kPresetKey);
  if (!preset.is_string()) {
    throw ConfigError(source + ": preset = " + Excerpt(preset) + ": expected a name in quotes");
  }
  document.erase(kPresetKey);
  return preset.get<std::string>();
}

/// Merges all but the preset. `document`: the file's.
void MergeGiven(const ConfigSources& sources, const Json& document, Json& config) {
  MergeConfig(config, sources.settings, sources.settings_source);
  MergeConfig(config, document, sources.file);
  for (const std::string& assignment : sources.overrides) {
    ApplyOverride(config, assignment);
  }
}

/// `text` as lines of a comment.
void WriteComment(std::ostream& out, const std::string& text, const std::string& indent) {
  const std::string start = indent + "//";
  std::istringstream words(text);
  std::string line = start;
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kLineWidth && line != start) {
      out << line << "\n";
      line = start;
    }
    line += " " + word;
  }
  out << line << "\n";
}

void WriteSection(std::ostream& out, const std::string& section, const Json& keys) {
  out << "  \"" << section << "\": {\n";
  size_t written = 0;
  for (const auto& [name, value] : keys.items()) {
    for (const ConfigKey& key : ConfigSchema()) {
      if (key.path == section + "." + name) {
        const std::string otherwise = key.default_value.empty()
                                          ? "must be given"
                                          : "default " + std::string(key.default_value);
        WriteComment(
            out,
            std::string(key.help) + " (" + std::string(key.expectation) + "; " + otherwise + ")",
            "    ");
      }
    }
    out << "    \"" << name << "\": " << value.dump() << (++written < keys.size() ? ",\n" : "\n");
  }
  out << "  }";
}

}  // namespace

Json MergeSources(const ConfigSources& sources) {
  Json document = Json::object();
  std::string preset;
  if (!sources.file.empty()) {
    document = ReadStrictJsonFile(sources.file, JsonComments::kIgnored);
    preset = TakePreset(document, sources.file);
  }
  Json config = DefaultConfig();
  if (!sources.preset.empty()) {
    MergeConfig(config, PresetSettings(sources.preset, "--preset"), "preset " + sources.preset);
  } else if (!preset.empty()) {
    MergeConfig(config, PresetSettings(preset, sources.file + ": preset"), "preset " + preset);
  }
  MergeGiven(sources, document, config);
  // Nobody has asked for what a preset says of an optimizer that somebody has replaced.
  Json without_preset = DefaultConfig();
  MergeGiven(sources, document, without_preset);
  TakeWhereWithoutMeaning(without_preset, config);
  return config;
}

Json ResolveConfig(const ConfigSources& sources) {
  Json config = MergeSources(sources);
  ValidateConfig(config);
  return config;
}

std::string CommentedConfig(const Json& values) {
  std::ostringstream out;
  WriteComment(out,
               "A configuration of fsdp-train with all keys: JSON, in which comments may stand. "
               "Keys that are left out have their defaults.",
               "");
  out << "{\n";
  size_t written = 0;
  for (const auto& [section, keys] : values.items()) {
    WriteSection(out, section, keys);
    out << (++written < values.size() ? ",\n" : "\n");
  }
  out << "}\n";
  return out.str();
}

}  // namespace fsdprun::worker
