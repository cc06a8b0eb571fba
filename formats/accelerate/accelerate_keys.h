#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fsdprun {

/// What a value may be.
enum class AccelerateKind {
  kBool,
  kNumber,      // from `minimum` to `maximum`
  kWord,        // one of `words`, in any case
  kWordOrBool,  // the same, or a boolean
  kText,
  kAny,  // it is not looked at
};

struct AccelerateKey {
  std::string_view name;  // "num_machines", "fsdp_config.fsdp_version"
  AccelerateKind kind = AccelerateKind::kAny;
  std::string_view words = {};  // separated by blanks
  int64_t minimum = 0;
  int64_t maximum = 0;
};

/// Of accelerate's configuration file: the keys that are known, those of a section behind its name
/// and a dot. Source: accelerate's ClusterConfig and its `accelerate launch`, version 1.
const std::vector<AccelerateKey>& AccelerateKeys();

/// A map of keys of its own. `prefix`: what its keys begin with, and may be written without if
/// `is_optional`.
struct AccelerateSection {
  std::string_view name;
  std::string_view prefix;
  bool is_optional = false;
};
/// nullptr: `name` is none whose keys are known.
const AccelerateSection* FindAccelerateSection(std::string_view name);

/// nullptr: it is not known.
const AccelerateKey* FindAccelerateKey(std::string_view name);

}  // namespace fsdprun
