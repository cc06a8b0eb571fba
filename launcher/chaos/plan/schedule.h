#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/chaos/plan/fault.h"

namespace fsdprun::chaos {

// Note [A schedule of faults]
// As text, a fault in a line: TIME FAULT [TARGET[:NUMBER]] [LENGTH] [LATENCY], where `#` begins a
// comment:
//
//     5 kill worker:1
//     20s stop agent 4s
//     1min delay agent:0 10s 200ms
//     90s fill 5s
//
// As JSON, a list of objects with "at", "fault", "target", "length" and "latency", whose times are
// numbers of seconds or texts as above. Times count from the moment at which all workers run for
// the first time. NUMBER is the rank of a worker, or the number of a node; without it one is
// chosen, which depends on the place in the schedule and on --seed alone.

/// A schedule, in order of time. Pure. Errors: OUT_OF_RANGE, with the line or the entry that is
/// wrong and what is expected there.
absl::StatusOr<FaultPlan> ParseSchedule(absl::string_view text, uint64_t seed);

}  // namespace fsdprun::chaos
