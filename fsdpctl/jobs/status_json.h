#pragma once

// What the commands print with --json: docs/CONTROL.md is the schema, which programs may rely on.

#include <cstdint>
#include <string>
#include <vector>

#include "fsdprun/v1/control.pb.h"
#include "launcher/control/job_file.h"

namespace fsdprun {

/// One object, without the newline. Text that is not UTF-8 is replaced. Pure.
std::string StatusJson(const v1::JobStatus& status, bool with_workers = false);
std::string JobListJson(const std::vector<JobEntry>& jobs);

}  // namespace fsdprun
