#include "worker/checkpoint/key_layout.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {
namespace {

constexpr std::string_view kState = "state.";
constexpr std::string_view kMoment = ".exp_avg";
constexpr size_t kNamesTried = 16;

/// Those of `keys` that begin with `prefix`, without it.
std::vector<std::string> NamesAfter(const std::vector<std::string>& keys,
                                    const std::string& prefix) {
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    if (key.starts_with(prefix)) {
      names.push_back(key.substr(prefix.size()));
    }
  }
  return names;
}

/// What stands before `name` in stored keys; either nothing or whole parts.
std::set<std::string> PrefixesOf(const DcpMetadata& metadata, const std::string& name) {
  std::set<std::string> prefixes;
  for (const auto& [key, tensor] : metadata.tensors) {
    if (key.ends_with(name)) {
      const std::string prefix = key.substr(0, key.size() - name.size());
      if (prefix.empty() || prefix.ends_with('.')) {
        prefixes.insert(prefix);
      }
    }
  }
  return prefixes;
}

/// The same of the first of `names` that is there; a few are tried.
std::set<std::string> PrefixesOfFirst(const DcpMetadata& metadata,
                                      const std::vector<std::string>& names) {
  for (size_t i = 0; i < std::min(names.size(), kNamesTried); ++i) {
    std::set<std::string> prefixes = PrefixesOf(metadata, names[i]);
    if (!prefixes.empty()) {
      return prefixes;
    }
  }
  return {};
}

std::string FindPrefix(const DcpMetadata& metadata, const std::vector<std::string>& names,
                       const std::string& usual, const std::string& path) {
  const auto count_below = [&](const std::string& prefix) {
    return std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      return metadata.tensors.contains(prefix + name);
    });
  };
  const auto all = static_cast<std::ptrdiff_t>(names.size());
  std::string best = usual;
  std::ptrdiff_t best_count = count_below(usual);
  if (names.empty() || best_count == all) {
    return best;
  }
  for (const std::string& prefix : PrefixesOfFirst(metadata, names)) {
    const std::ptrdiff_t count = count_below(prefix);
    if (count == all && best_count == all) {
      throw MismatchError(path + " has " + best + names.front() + " and " + prefix + names.front() +
                          ", and all the rest twice as well; name the one that is meant " + usual +
                          names.front() + ", with fsdpctl ckpt convert --map");
    }
    if (count > best_count) {
      best = prefix;
      best_count = count;
    }
  }
  return best;
}

}  // namespace

std::string KeyLayout::Stored(const std::string& key) const {
  const KeyLayout usual;
  for (const auto& [from, to] : {std::pair(usual.model, model), {usual.optimizer, optimizer}}) {
    if (key.starts_with(from)) {
      return to + key.substr(from.size());
    }
  }
  return key;
}

KeyLayout FindKeyLayout(const DcpMetadata& metadata, const std::vector<std::string>& keys,
                        const std::string& path) {
  const KeyLayout usual;
  return {FindPrefix(metadata, NamesAfter(keys, usual.model), usual.model, path),
          FindPrefix(metadata, NamesAfter(keys, usual.optimizer), usual.optimizer, path)};
}

std::vector<std::string> FindUnknownParameters(const DcpMetadata& metadata,
                                               const std::vector<std::string>& keys,
                                               const KeyLayout& layout) {
  if (NamesAfter(keys, KeyLayout().optimizer).empty()) {
    return {};  // the optimizer is not asked for
  }
  std::set<std::string> known;
  for (const std::string& key : keys) {
    known.insert(layout.Stored(key));
  }
  const std::string prefix = layout.optimizer + std::string(kState);
  std::vector<std::string> unknown;
  for (const auto& [key, tensor] : metadata.tensors) {
    if (key.starts_with(prefix) && key.ends_with(kMoment) && !known.contains(key)) {
      unknown.push_back(key);
    }
  }
  return unknown;
}

std::string AdviseOnOptimizer(const DcpMetadata& metadata, const KeyLayout& layout) {
  const std::string prefix = layout.optimizer + std::string(kState);
  if (metadata.tensors.contains(prefix + "0" + std::string(kMoment))) {
    return "its optimizer's state goes by numbers; in Python, save what get_optimizer_state_dict() "
           "of torch.distributed.checkpoint.state_dict returns, which goes by names";
  }
  const bool has_state =
      std::any_of(metadata.tensors.begin(), metadata.tensors.end(),
                  [&](const auto& entry) { return entry.first.starts_with(prefix); });
  return has_state ? ""
                   : "it has no optimizer's state; to begin a training with its weights, set "
                     "model.weights to its folder";
}

}  // namespace fsdprun::checkpoint
