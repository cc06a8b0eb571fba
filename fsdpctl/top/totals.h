#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdpctl/top/rank_rows.h"
#include "fsdpctl/top/snapshot.h"

namespace fsdprun::top {

/// What the workers of a job add up to. 0, and -1 of a step: nobody says so.
struct Totals {
  int ended = 0;
  /// Also those that findings count and do not name.
  int hanging = 0;
  int stopped = 0;
  int silent = 0;
  int slow = 0;
  int behind = 0;
  double cpus = 0;
  int64_t rss = 0;
  int64_t pss = 0;
  int64_t device = 0;
  /// The most that one worker has used.
  int64_t device_peak = 0;
  /// Of the first rank that says it.
  std::optional<double> loss;
  /// Some rank's is infinite or no number.
  bool has_bad_loss = false;
  double tokens_per_second = 0;
  /// Half of the ranks take longer.
  int64_t median_step_ns = 0;
  /// Of the job: as told with the progress, else the lowest that is being computed.
  int64_t step = -1;
  int64_t total = -1;
};

/// Pure.
Totals TotalsOf(const v1::JobStatus& status, const std::vector<RankRow>& ranks);

/// How long the rest of the steps takes, by the steps seen, else by what one takes; absent: nobody
/// knows. Pure.
std::optional<int64_t> RestNs(const Totals& totals, const std::optional<double>& steps_per_second);

}  // namespace fsdprun::top
