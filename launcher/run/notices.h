#pragma once

#include <string>

#include "base/mono_time.h"
#include "launcher/coordinator/job_machine.h"
#include "proto/cluster/messages.h"

namespace fsdprun {

/// How much of `timeout`, which ends at `deadline`, is over: "5 s of 600 s". Pure.
std::string DescribeWait(MonoTime deadline, Duration timeout, MonoTime now);

/// A stop that ends by itself soon is not worth a line. Pure.
bool IsWorthTelling(const job::StopStatus& stop, MonoTime now);

/// Who is still running, for how long, and what an operator can do about it. Pure.
std::string DescribeStop(const job::StopStatus& stop, MonoTime now);

/// Which node is left out, why, and what an operator can do about it. `min_nodes`: see JobSpec.
/// Pure.
std::string DescribeQuarantine(const job::NodeQuarantined& quarantined, int min_nodes);

/// What the launcher on that node says; `why` is the coordinator's. Pure.
std::string DescribeLeftOut(const std::string& why);

/// Where this launcher's command line says something else about the job than the coordinator's at
/// `where`, whose values count: one line, or empty. Pure.
std::string DescribeOtherTerms(const AdmitAgent& own, const AdmitAgent& job,
                               const std::string& where);

}  // namespace fsdprun
