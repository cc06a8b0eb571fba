#include "worker/config/config_schema.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "formats/models/lora.h"
#include "worker/config/sections/sections.h"
#include "worker/config/training_rules.h"

namespace fsdprun::worker {
namespace {

/// One source of data.mixture.
bool IsMixtureSource(const Json& value) {
  return value.is_object() && value.size() == 2 && value.contains("files") &&
         value.at("files").is_array() && !value.at("files").empty() &&
         std::all_of(value.at("files").begin(), value.at("files").end(),
                     [](const Json& file) { return file.is_string() && file != ""; }) &&
         value.contains("weight") && value.at("weight").is_number() &&
         value.at("weight").get<double>() > 0;
}

bool HasKind(const Json& value, ValueKind kind) {
  switch (kind) {
    case ValueKind::kString:
      return value.is_string();
    case ValueKind::kInteger:
      return value.is_number_integer();
    case ValueKind::kNumber:
      return value.is_number() && std::isfinite(value.get<double>());
    case ValueKind::kBoolean:
      return value.is_boolean();
    case ValueKind::kStringList:
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& entry) {
               return entry.is_string() && entry != "";
             });
    case ValueKind::kIntegerList:
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& entry) {
               return entry.is_number_integer();
             });
    case ValueKind::kBetas:
      return value.is_array() && std::all_of(value.begin(), value.end(),
                                             [](const Json& beta) { return beta.is_number(); });
    case ValueKind::kMixture:
      return value.is_array() && std::all_of(value.begin(), value.end(), IsMixtureSource);
    case ValueKind::kNamesOrAllLinear:
      return value == kAllLinear || HasKind(value, ValueKind::kStringList);
    case ValueKind::kIntegerOrAuto:
      return value == "auto" || HasKind(value, ValueKind::kInteger);
    case ValueKind::kNumberOrAuto:
      return value == "auto" || HasKind(value, ValueKind::kNumber);
    case ValueKind::kBooleanOrAuto:
      return value == "auto" || value.is_boolean();
  }
  return false;
}

/// Whether data.mixture says what data.train would.
bool IsReplaced(const ConfigKey& key, const Json& config) {
  return key.path == "data.train" && !config.at("data").at("mixture").empty();
}

std::string_view SectionOf(std::string_view path) { return path.substr(0, path.find('.')); }
std::string_view NameOf(std::string_view path) { return path.substr(path.find('.') + 1); }

const ConfigKey* FindKey(std::string_view path) {
  for (const ConfigKey& key : ConfigSchema()) {
    if (key.path == path) {
      return &key;
    }
  }
  return nullptr;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// "; did you mean X?" for the nearest candidate, or nothing if none is close.
std::string Suggest(std::string_view given, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  size_t best_distance = given.size() / 3 + 2;
  for (std::string_view candidate : candidates) {
    const size_t distance = EditDistance(given, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : "; did you mean " + std::string(best) + "?";
}

std::vector<std::string_view> SectionNames() {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : ConfigSchema()) {
    if (names.empty() || names.back() != SectionOf(key.path)) {
      names.push_back(SectionOf(key.path));
    }
  }
  return names;
}

[[noreturn]] void RefuseUnknown(const std::string& path, const Json& value,
                                const std::string& source) {
  std::vector<std::string_view> candidates;
  for (const ConfigKey& key : ConfigSchema()) {
    candidates.push_back(key.path);
  }
  // The right name in the wrong section is a better suggestion than a similar spelling.
  for (const ConfigKey& key : ConfigSchema()) {
    if (path.find('.') != std::string::npos && NameOf(key.path) == NameOf(path)) {
      candidates = {key.path};
    }
  }
  std::string suggestion = Suggest(path, candidates);
  if (suggestion.empty() && candidates.size() == 1) {
    suggestion = "; did you mean " + std::string(candidates.front()) + "?";
  }
  throw ConfigError(source + ": " + path + " = " + Excerpt(value) +
                    ": expected a known key (see fsdp-train --help)" + suggestion);
}

void Assign(Json& config, const std::string& path, const Json& value, const std::string& source) {
  if (FindKey(path) == nullptr) {
    RefuseUnknown(path, value, source);
  }
  config[std::string(SectionOf(path))][std::string(NameOf(path))] = value;
}

bool IsUtf8(std::string_view text) {
  try {
    Json(std::string(text)).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

/// Discarded if it is not a JSON value. The depth is limited, because no key has a deeply nested
/// value.
Json ParseOverride(const std::string& text) {
  constexpr int kMaxDepth = 8;
  const auto keep = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw ConfigError("--set: nested deeper than " + std::to_string(kMaxDepth));
    }
    return true;
  };
  return Json::parse(text, keep, /*allow_exceptions=*/false);
}

}  // namespace

const std::vector<ConfigKey>& ConfigSchema() {
  static const std::vector<ConfigKey> schema = [] {
    std::vector<ConfigKey> all;
    for (const auto section :
         {&ModelKeys, &LoraKeys, &DataKeys, &TrainKeys, &OptimizerKeys, &ScheduleKeys,
          &ParallelKeys, &PrecisionKeys, &CheckpointKeys, &MetricsKeys}) {
      const std::vector<ConfigKey> keys = section();
      all.insert(all.end(), keys.begin(), keys.end());
    }
    return all;
  }();
  return schema;
}

Json DefaultConfig() {
  Json config = Json::object();
  for (const ConfigKey& key : ConfigSchema()) {
    Json& section = config[std::string(SectionOf(key.path))];
    section[std::string(NameOf(key.path))] =
        key.default_value.empty() ? Json(nullptr) : Json::parse(key.default_value);
  }
  return config;
}

void MergeConfig(Json& config, const Json& document, const std::string& source) {
  if (!document.is_object()) {
    throw ConfigError(source + ": expected an object of sections, got " + Excerpt(document));
  }
  for (const auto& [section, keys] : document.items()) {
    const std::vector<std::string_view> sections = SectionNames();
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) {
      throw ConfigError(source + ": " + section + " = " + Excerpt(keys) +
                        ": expected a known section" + Suggest(section, sections));
    }
    if (!keys.is_object()) {
      throw ConfigError(source + ": " + section + " = " + Excerpt(keys) + ": expected an object");
    }
    for (const auto& [name, value] : keys.items()) {
      Assign(config, section + "." + name, value, source);
    }
  }
}

void ApplyOverride(Json& config, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError("--set " + std::string(assignment) +
                      ": expected section.key=value, e.g. train.steps=100");
  }
  const std::string path(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  if (!IsUtf8(assignment)) {
    throw ConfigError("--set " + Excerpt(Json(std::string(assignment))) + ": expected UTF-8");
  }
  Json value = ParseOverride(text);
  const ConfigKey* key = FindKey(path);
  const bool wants_text = key != nullptr && key->kind == ValueKind::kString;
  if (value.is_discarded() || (wants_text && !value.is_string())) {
    value = text;
  }
  Assign(config, path, value, "--set");
}

void ValidateConfig(const Json& config) {
  for (const ConfigKey& key : ConfigSchema()) {
    const Json& value =
        config.at(std::string(SectionOf(key.path))).at(std::string(NameOf(key.path)));
    if (value.is_null() && IsReplaced(key, config)) {
      continue;
    }
    if (value.is_null() && key.default_value.empty()) {
      throw ConfigError("configuration: " + std::string(key.path) + " is missing: expected " +
                        std::string(key.expectation));
    }
    if (!HasKind(value, key.kind) || (key.is_valid != nullptr && !key.is_valid(value))) {
      throw ConfigError("configuration: " + std::string(key.path) + " = " + Excerpt(value) +
                        ": expected " + std::string(key.expectation));
    }
  }
  CheckTrainingRules(config);
}

std::string DescribeConfigKeys() {
  std::ostringstream out;
  std::string_view section;
  for (const ConfigKey& key : ConfigSchema()) {
    if (section != SectionOf(key.path)) {
      section = SectionOf(key.path);
      out << "\n" << section << "\n";
    }
    out << "  " << NameOf(key.path) << ": " << key.help << "\n      " << key.expectation << "; "
        << (key.default_value.empty() ? std::string("required")
                                      : "default " + std::string(key.default_value))
        << "\n";
  }
  return out.str();
}

}  // namespace fsdprun::worker
