#pragma once

#include <string>
#include <vector>

#include "formats/accelerate/accelerate_config.h"
#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// What of a configuration of accelerate concerns fsdp-train.
struct AccelerateSettings {
  /// Sections of the configuration, as a file of --config has them.
  Json settings = Json::object();
  /// For the user: which keys of the file change nothing, and why.
  std::vector<std::string> notes;
};

/// The ranks that there are, whatever the file says.
struct AccelerateWorld {
  int world_size = 1;
  int local_world_size = 1;  // of this node
};

/// Pure. Errors: ConfigError naming file, line, key and value of what the file asks for and
/// fsdp-train does not do.
AccelerateSettings SettingsOfAccelerate(const AccelerateConfig& config,
                                        const AccelerateWorld& world);

}  // namespace fsdprun::worker
