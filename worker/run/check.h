#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "formats/json/strict_json.h"
#include "worker/contract/worker_environment.h"

namespace fsdprun::worker {

/// `fsdp-train check`: reads what a run of `resolved` on `ranks` ranks would read before its first
/// step (configuration, model, data, what files say of weights, checkpoints, the limit of memory),
/// and calls `write` with lines of what it would do. Asks no other rank, and changes nothing on
/// disk; what only an attempt would tell, such as that devices are there, is not looked at. Waits
/// for a claim of checkpoint.dir as the run would. Errors: those that the run would refuse its
/// configuration with.
void CheckRun(const Json& resolved, int64_t ranks, const WorkerEnvironment& environment,
              const std::function<void(const std::string&)>& write);

}  // namespace fsdprun::worker
