#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/control/job_file.h"

namespace fsdprun {

/// The one of `jobs` that `name` names, its run id or its pid; without a name, the only one. Pure.
/// Errors: NOT_FOUND, with what there is.
absl::StatusOr<JobEntry> ChooseJob(const std::vector<JobEntry>& jobs, const std::string& name);

}  // namespace fsdprun
