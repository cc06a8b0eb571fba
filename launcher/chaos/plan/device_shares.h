#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "launcher/chaos/plan/wrapped_job.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::chaos {

/// The variables with which each node of a job sees GPUs of its own: on one machine the first
/// worker of every node would take the first one. Each gets as many; some may be left over. Nothing
/// for nodes without GPUs. `gpus`: how many are visible, by the lists of `environment`. Pure.
/// Errors: OUT_OF_RANGE if there are fewer than nodes.
absl::StatusOr<std::vector<Environment>> ShareDevices(const WrappedJob& job, int gpus,
                                                      const Environment& environment);

}  // namespace fsdprun::chaos
