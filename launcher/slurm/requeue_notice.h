#pragma once

#include <cstdint>
#include <string>

#include "launcher/cli/launch_plan.h"
#include "launcher/slurm/job_record.h"

namespace fsdprun {

/// For the operator, at the start of a run that is stopped and requeued without being told to: when
/// that is, and how to have it otherwise. `record` has an end of the time limit; the workers are
/// stopped `margin_s` before, or at once if that has come and they are ready for it. Pure.
std::string RequeueNotice(RequeueMode mode, const std::string& job, const SlurmJobRecord& record,
                          int64_t now, int64_t margin_s);

}  // namespace fsdprun
