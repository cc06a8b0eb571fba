#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "worker/config/estimate_request.h"

namespace CLI {
class App;
}  // namespace CLI

namespace fsdprun::worker {

/// "80GiB", "1.5 TB", "4096": a number and B, KB, MB, GB, TB of 1000 or KiB, MiB, GiB, TiB of 1024,
/// or nothing for bytes. nullopt for anything else, for less than one byte and for 2^60 and more.
/// Pure.
std::optional<int64_t> ParseByteCount(std::string_view text);

/// Adds --world. Errors while it is parsed, here and below: UsageError naming option, value and
/// what is expected. `request` and `expectations` outlive the command.
void AddWorldOption(CLI::App& command, EstimateRequest& request,
                    std::map<std::string, std::string>& expectations);

/// Adds all of them.
void AddEstimateOptions(CLI::App& command, EstimateRequest& request,
                        std::map<std::string, std::string>& expectations);

}  // namespace fsdprun::worker
