#include "fsdpctl/doctor/pair/round_trips.h"

#include <algorithm>
#include <limits>

namespace fsdprun::doctor {
namespace {

constexpr double kNsPerUs = 1000;

}  // namespace

RoundTrips Summarised(const std::vector<TripSample>& samples) {
  RoundTrips trips{.count = static_cast<int>(samples.size())};
  std::vector<double> times;
  double quickest = std::numeric_limits<double>::max();
  for (const TripSample& sample : samples) {
    const double there_and_back = static_cast<double>((sample.answered - sample.asked) -
                                                      (sample.other_answered - sample.other_heard));
    times.push_back(there_and_back / kNsPerUs);
    if (there_and_back < quickest) {
      quickest = there_and_back;
      trips.clock_offset_us = static_cast<double>((sample.other_heard - sample.asked) +
                                                  (sample.other_answered - sample.answered)) /
                              2 / kNsPerUs;
      trips.clock_error_us = there_and_back / 2 / kNsPerUs;
    }
  }
  if (times.empty()) {
    return trips;
  }
  std::sort(times.begin(), times.end());
  trips.median_us = times[times.size() / 2];
  trips.p99_us = times[(times.size() - 1) * 99 / 100];
  return trips;
}

}  // namespace fsdprun::doctor
