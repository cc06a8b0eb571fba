#pragma once

#include <cstdint>
#include <vector>

#include "fsdpctl/doctor/checks/pair_facts.h"

namespace fsdprun::doctor {

/// One question and its answer, in nanoseconds of each end's wall clock.
struct TripSample {
  int64_t asked = 0;
  int64_t other_heard = 0;
  int64_t other_answered = 0;
  int64_t answered = 0;
};

/// As NTP has it: the clocks are compared by the quickest of the trips. Pure.
RoundTrips Summarised(const std::vector<TripSample>& samples);

}  // namespace fsdprun::doctor
