#include "formats/tensors/weight_keys.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdprun {
namespace {

using checkpoint::DcpMetadata;
using checkpoint::PathPart;
/// Keys by name.
using Names = std::map<std::string, std::string>;

constexpr std::string_view kModelPart = "model";
constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kOthers[] = {"optim",       "optimizer",    "train",
                                        "train_state", "lr_scheduler", "dataloader"};
constexpr size_t kDepthMax = 2;  // of the dict "model"

bool IsOther(std::string_view first_part) {
  return std::find(std::begin(kOthers), std::end(kOthers), first_part) != std::end(kOthers);
}

/// What precedes the name in the model, such as "app.model."; empty: it is in no dict "model".
std::string PrefixOf(const std::string& key, const std::vector<PathPart>& path) {
  std::string prefix;
  for (size_t i = 0; i < kDepthMax && i + 1 < path.size(); ++i) {
    const auto* part = std::get_if<std::string>(&path[i]);
    if (part == nullptr || (i == 0 && IsOther(*part))) {
      return {};
    }
    prefix += *part + ".";
    if (*part == kModelPart) {
      return key.size() > prefix.size() && key.starts_with(prefix) ? prefix : std::string();
    }
  }
  return {};
}

/// All tensors but those of an optimizer and the like.
Names OwnNames(const DcpMetadata& metadata) {
  Names names;
  for (const auto& [key, tensor] : metadata.tensors) {
    const size_t dot = key.find('.');
    if (dot == std::string::npos || !IsOther(std::string_view(key).substr(0, dot))) {
      names[key] = key;
    }
  }
  return names;
}

Names WithoutPrefix(const Names& names) {
  Names shorter;
  bool is_twice = false;
  for (const auto& [name, key] : names) {
    if (!name.starts_with(kModelPrefix) || name.size() == kModelPrefix.size()) {
      return names;
    }
    const std::string rest = name.substr(kModelPrefix.size());
    is_twice = is_twice || rest.starts_with(kModelPrefix) || rest.starts_with("transformer.") ||
               rest.starts_with("lm_head.");
    shorter[rest] = key;
  }
  return is_twice ? shorter : names;
}

}  // namespace

std::map<std::string, std::string> WeightKeys(const DcpMetadata& metadata) {
  if (metadata.paths.empty()) {
    return WithoutPrefix(OwnNames(metadata));
  }
  std::map<std::string, Names> by_prefix;
  for (const auto& [key, tensor] : metadata.tensors) {
    const auto path = metadata.paths.find(key);
    const std::string prefix =
        path == metadata.paths.end() ? std::string() : PrefixOf(key, path->second);
    if (!prefix.empty()) {
      by_prefix[prefix][key.substr(prefix.size())] = key;
    }
  }
  if (const auto model = by_prefix.find(std::string(kModelPrefix)); model != by_prefix.end()) {
    return model->second;
  }
  return by_prefix.size() == 1 ? by_prefix.begin()->second : OwnNames(metadata);
}

}  // namespace fsdprun
