#include "formats/accelerate/accelerate_config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "formats/accelerate/accelerate_keys.h"
#include "formats/yaml/strict_yaml.h"

namespace fsdprun {
namespace {

std::string InUpperCase(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper;
}

std::vector<std::string_view> WordsOf(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t blank = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, blank));
    text.remove_prefix(std::min(blank + 1, text.size()));
  }
  return words;
}

bool IsWord(std::string_view text, std::string_view words) {
  const std::vector<std::string_view> all = WordsOf(words);
  return std::any_of(all.begin(), all.end(), [upper = InUpperCase(text)](std::string_view word) {
    return InUpperCase(word) == upper;
  });
}

std::string Expectation(const AccelerateKey& key) {
  std::string words;
  for (const std::string_view word : WordsOf(key.words)) {
    words += (words.empty() ? "" : ", ") + std::string(word);
  }
  switch (key.kind) {
    case AccelerateKind::kBool:
      return "true or false";
    case AccelerateKind::kNumber:
      return "a whole number from " + std::to_string(key.minimum) + " to " +
             std::to_string(key.maximum);
    case AccelerateKind::kWord:
      return words.find(',') == std::string::npos ? words : "one of " + words;
    case AccelerateKind::kWordOrBool:
      return "true, false, or one of " + words;
    case AccelerateKind::kText:
    case AccelerateKind::kAny:
      break;
  }
  return "a text";
}

/// The value as text where the key allows it.
std::optional<AccelerateSetting> SettingOf(const YamlNode& node, const AccelerateKey& key) {
  AccelerateSetting setting{node.line, node.text, false};
  const std::optional<bool> flag = node.AsBool();
  const bool is_scalar = node.kind == YamlNode::Kind::kScalar;
  switch (key.kind) {
    case AccelerateKind::kBool:
      setting.text = flag.value_or(false) ? "true" : "false";
      return flag ? std::optional(setting) : std::nullopt;
    case AccelerateKind::kNumber: {
      const std::optional<int64_t> number = node.AsInteger();
      const bool fits = number && *number >= key.minimum && *number <= key.maximum;
      setting.text = fits ? std::to_string(*number) : "";
      return fits ? std::optional(setting) : std::nullopt;
    }
    case AccelerateKind::kWordOrBool:
      if (flag) {
        setting.text = *flag ? "true" : "false";
        setting.is_bool = true;
        return setting;
      }
      [[fallthrough]];
    case AccelerateKind::kWord:
      // `no` without quotes is a boolean to YAML, and here a word.
      return is_scalar && IsWord(node.text, key.words) ? std::optional(setting) : std::nullopt;
    case AccelerateKind::kText:
      return is_scalar ? std::optional(setting) : std::nullopt;
    case AccelerateKind::kAny:
      break;
  }
  return setting;
}

std::string Excerpt(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      break;
  }
  constexpr size_t kShownBytesMax = 60;
  return node.text.size() <= kShownBytesMax ? "'" + node.text + "'"
                                            : "'" + node.text.substr(0, kShownBytesMax) + "...'";
}

bool IsVariableText(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return std::iscntrl(c) != 0; });
}

/// Reads the fields of the document and of its sections.
class Reader {
 public:
  Reader(const std::string& source, std::vector<std::string>& warnings,
         std::map<std::string, AccelerateSetting, std::less<>>& settings,
         std::map<std::string, int>& sections)
      : source_(source), warnings_(warnings), settings_(settings), sections_(sections) {}

  void Read(const YamlNode& root) {
    if (root.kind != YamlNode::Kind::kMap) {
      throw ConfigError(source_ + ":" + std::to_string(std::max(root.line, 1)) +
                        ": expected the keys of a configuration of accelerate, got " +
                        Excerpt(root));
    }
    for (const YamlField& field : root.fields) {
      if (const AccelerateSection* section = FindAccelerateSection(field.key)) {
        ReadSection(*section, field);
      } else if (field.key == "dynamo_backend") {
        // As old files have it.
        ReadSetting("dynamo_config.dynamo_backend", field);
      } else {
        ReadSetting(field.key, field);
      }
    }
  }

 private:
  std::string At(int line) const { return source_ + ":" + std::to_string(line) + ": "; }

  void ReadSection(const AccelerateSection& section, const YamlField& field) {
    if (field.value.kind == YamlNode::Kind::kNull) {
      return;
    }
    if (field.value.kind != YamlNode::Kind::kMap) {
      throw ConfigError(At(field.line) + field.key + " = " + Excerpt(field.value) +
                        ": expected keys below it");
    }
    if (!field.value.fields.empty()) {
      sections_[field.key] = field.line;
    }
    for (const YamlField& inner : field.value.fields) {
      const bool has_prefix = inner.key.starts_with(section.prefix) || !section.is_optional;
      ReadSetting(field.key + "." + (has_prefix ? "" : std::string(section.prefix)) + inner.key,
                  inner);
    }
  }

  void ReadSetting(const std::string& name, const YamlField& field) {
    const AccelerateKey* key = FindAccelerateKey(name);
    if (key == nullptr) {
      // In one line, whatever the key has.
      warnings_.push_back(
          ConfigError(At(field.line) + name + ": this key is not known, and has no effect").what());
      return;
    }
    if (field.value.kind == YamlNode::Kind::kNull) {
      return;
    }
    std::optional<AccelerateSetting> setting = SettingOf(field.value, *key);
    if (!setting || !IsVariableText(setting->text)) {
      throw ConfigError(At(field.line) + name + " = " + Excerpt(field.value) + ": expected " +
                        Expectation(*key));
    }
    setting->line = field.line;
    if (!settings_.try_emplace(name, *std::move(setting)).second) {
      throw ConfigError(At(field.line) + name + ": it is there twice, first in line " +
                        std::to_string(settings_.at(name).line));
    }
  }

  const std::string& source_;
  std::vector<std::string>& warnings_;
  std::map<std::string, AccelerateSetting, std::less<>>& settings_;
  std::map<std::string, int>& sections_;
};

}  // namespace

AccelerateConfig::AccelerateConfig(std::string_view text, std::string source)
    : source_(std::move(source)) {
  Reader(source_, warnings_, settings_, sections_).Read(ParseStrictYaml(text, source_));
  if (Find("distributed_type") == nullptr) {
    throw ConfigError(source_ + ": distributed_type is missing: expected " +
                      Expectation(*FindAccelerateKey("distributed_type")));
  }
  if (auto old = settings_.extract("fp16"); !old.empty() && old.mapped().text == "true") {
    // As accelerate makes a new file of an old one.
    settings_.try_emplace("mixed_precision", AccelerateSetting{old.mapped().line, "fp16"});
  }
  // As accelerate launch, which otherwise fails later with one rank's weights on all ranks.
  if (Word("distributed_type", "") == "FSDP" &&
      Flag("fsdp_config.fsdp_cpu_ram_efficient_loading", true) &&
      !Flag("fsdp_config.fsdp_sync_module_states", true)) {
    Refuse("fsdp_config.fsdp_sync_module_states",
           "true, or fsdp_cpu_ram_efficient_loading: false with it");
  }
}

const AccelerateSetting* AccelerateConfig::Find(std::string_view name) const {
  const auto found = settings_.find(name);
  return found == settings_.end() ? nullptr : &found->second;
}

std::string AccelerateConfig::Text(std::string_view name, std::string_view missing) const {
  const AccelerateSetting* setting = Find(name);
  return setting == nullptr ? std::string(missing) : setting->text;
}

std::string AccelerateConfig::Word(std::string_view name, std::string_view missing) const {
  return InUpperCase(Text(name, missing));
}

bool AccelerateConfig::Flag(std::string_view name, bool missing) const {
  const AccelerateSetting* setting = Find(name);
  return setting == nullptr ? missing : setting->text == "true";
}

std::optional<int64_t> AccelerateConfig::Number(std::string_view name) const {
  const AccelerateSetting* setting = Find(name);
  int64_t number = 0;
  if (setting == nullptr) {
    return std::nullopt;
  }
  std::from_chars(setting->text.data(), setting->text.data() + setting->text.size(), number);
  return number;
}

std::string AccelerateConfig::Place(std::string_view name) const {
  const AccelerateSetting* setting = Find(name);
  const std::string line = setting == nullptr ? "" : ":" + std::to_string(setting->line);
  return source_ + line + ": " + std::string(name);
}

void AccelerateConfig::Refuse(std::string_view name, const std::string& expectation) const {
  throw ConfigError(Place(name) + " = '" + Text(name, "") + "': expected " + expectation);
}

AccelerateConfig ReadAccelerateConfig(const std::string& path) {
  return {ReadSmallFile(path, kYamlBytesMax), path};
}

}  // namespace fsdprun
