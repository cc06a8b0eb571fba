#pragma once

#include <string>

#include "formats/json/strict_json.h"
#include "worker/config/estimate_request.h"

namespace fsdprun::worker {

/// What parallel.backend = "auto" is for ranks on machines like this one (EstimateOptions): whether
/// the NVIDIA driver tells of GPUs decides.
std::string AutoBackendHere(bool is_one_host);

/// `fsdp-train estimate`: the text to print. `merged`: the configuration, in which the data need
/// not be named. `present_ranks`: those that there are. Reads the model's config.json and, if
/// nothing else says what a device can do, which GPUs this machine has. Errors: ConfigError;
/// UsageError for a device that is not known.
std::string RunEstimate(Json merged, const EstimateRequest& request, int64_t present_ranks);

}  // namespace fsdprun::worker
