#include "fsdpctl/ckpt/rename_map.h"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "formats/json/strict_json.h"

namespace fsdprun::ckpt {
namespace {

/// What `*` stands for; empty text where there is none. nullopt: the pattern does not fit.
std::optional<std::string> Match(const std::string& pattern, const std::string& key) {
  const size_t star = pattern.find('*');
  if (star == std::string::npos) {
    return pattern == key ? std::optional<std::string>("") : std::nullopt;
  }
  const std::string_view head(pattern.data(), star);
  const std::string_view tail = std::string_view(pattern).substr(star + 1);
  if (key.size() < head.size() + tail.size() || !key.starts_with(head) || !key.ends_with(tail)) {
    return std::nullopt;
  }
  return key.substr(star, key.size() - head.size() - tail.size());
}

using checkpoint::PathPart;

std::string PartText(const PathPart& part) {
  const auto* text = std::get_if<std::string>(&part);
  return text != nullptr ? *text : std::to_string(std::get<int64_t>(part));
}

/// As Python writes a path as a key.
std::string KeyOf(const std::vector<PathPart>& path) {
  std::string key;
  for (size_t i = 0; i < path.size(); ++i) {
    key += (i == 0 ? "" : ".") + PartText(path[i]);
  }
  return key;
}

}  // namespace

RenameMap::RenameMap(std::string_view text, const std::string& source) {
  const Json document = ParseStrictJson(text, source);
  if (!document.is_object()) {
    throw ConfigError(source + ": expected an object of old and new keys");
  }
  for (const auto& [pattern, name] : document.items()) {
    if (!name.is_null() && !name.is_string()) {
      throw ConfigError(source + ": " + pattern + ": " + Excerpt(name) +
                        ": expected a text, or null to leave keys out");
    }
    const auto to = name.is_null() ? std::nullopt : std::optional(name.get<std::string>());
    const auto stars = std::count(pattern.begin(), pattern.end(), '*');
    if (stars > 1 || (to && std::count(to->begin(), to->end(), '*') > stars)) {
      throw ConfigError(source + ": " + pattern +
                        ": one * is allowed, and in the new key only where the old one has it");
    }
    rules_.emplace_back(pattern, to);
  }
}

std::optional<std::string> RenameMap::Rename(const std::string& key) const {
  for (const auto& [pattern, to] : rules_) {
    const std::optional<std::string> middle = Match(pattern, key);
    if (!middle) {
      continue;
    }
    if (!to) {
      return std::nullopt;
    }
    std::string name = *to;
    if (const size_t star = name.find('*'); star != std::string::npos) {
      name.replace(star, 1, *middle);
    }
    return name;
  }
  return key;
}

std::vector<PathPart> PathAfterRename(const std::string& key, const std::vector<PathPart>& path,
                                      const std::string& name) {
  if (name == key) {
    return path;
  }
  if (KeyOf(path) != key) {
    return {name};
  }
  std::string_view middle = name;
  size_t first = 0;
  while (first < path.size() && middle.starts_with(PartText(path[first]) + ".")) {
    middle.remove_prefix(PartText(path[first]).size() + 1);
    ++first;
  }
  size_t last = path.size();
  while (last > first && middle.ends_with("." + PartText(path[last - 1]))) {
    middle.remove_suffix(PartText(path[last - 1]).size() + 1);
    --last;
  }
  std::vector<PathPart> result(path.begin(), path.begin() + static_cast<ptrdiff_t>(first));
  if (last > first && middle == PartText(path[last - 1])) {
    --last;
  } else {
    result.emplace_back(std::string(middle));
  }
  result.insert(result.end(), path.begin() + static_cast<ptrdiff_t>(last), path.end());
  return result;
}

}  // namespace fsdprun::ckpt
