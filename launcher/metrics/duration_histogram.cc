#include "launcher/metrics/duration_histogram.h"

#include <algorithm>

namespace fsdprun {

void DurationHistogram::Add(Duration duration) {
  const double seconds = ToSeconds(std::max(duration, Duration{}));
  const auto* const bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  if (bound != kBounds.end()) {
    ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  }
  ++count_;
  sum_ += seconds;
}

prometheus::ClientMetric::Histogram DurationHistogram::Values() const {
  prometheus::ClientMetric::Histogram values;
  values.sample_count = count_;
  values.sample_sum = sum_;
  uint64_t all = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    all += counts_[i];
    values.bucket.push_back({all, kBounds[i]});
  }
  return values;
}

}  // namespace fsdprun
