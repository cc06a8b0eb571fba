#pragma once

#include <nlohmann/json_fwd.hpp>

#include "fsdp_runtime/src/state_dict/optimizer_access.h"

namespace fsdp {

/// Between ranks of one build.
nlohmann::json json_of(const OptionValues& options);
OptionValues options_of_json(const nlohmann::json& json);

}  // namespace fsdp
