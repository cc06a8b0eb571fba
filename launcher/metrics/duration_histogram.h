#pragma once

#include <array>
#include <cstdint>

#include "base/mono_time.h"
#include "prometheus/client_metric.h"

namespace fsdprun {

/// Counts durations by how long they are, from 10 ms to half an hour.
class DurationHistogram {
 public:
  static constexpr std::array<double, 13> kBounds = {0.01, 0.03, 0.1, 0.3, 1,   3,   10,
                                                     30,   60,   180, 300, 900, 1800};

  void Add(Duration duration);
  uint64_t count() const { return count_; }
  /// In seconds.
  prometheus::ClientMetric::Histogram Values() const;

 private:
  /// Those up to each bound, and above the one before.
  std::array<uint64_t, kBounds.size()> counts_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace fsdprun
