#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/metrics/metrics.h"

namespace fsdprun::worker {

/// A series of any length in little memory: when it has become too long, neighbours are joined to
/// their mean. Pure.
class JoinedSeries {
 public:
  explicit JoinedSeries(size_t max_values = 4096) : max_values_(max_values) {}

  void Add(double value);
  /// As if only the first `count` had been added; of those that are joined, a part counts as their
  /// mean.
  void KeepFirst(size_t count);
  /// The one that was added last; where those are joined, their mean. 0: none was.
  double last() const;
  size_t count() const { return values_.size() * per_value_ + open_count_; }
  /// Each the mean of as many values as the others; the last few may be missing.
  const std::vector<double>& values() const { return values_; }

 private:
  size_t max_values_;
  size_t per_value_ = 1;
  std::vector<double> values_;
  double open_sum_ = 0;
  size_t open_count_ = 0;
};

/// What a start of a run has done, for the user at its end. Of steps that are done again, times and
/// speeds count each time, and what they have come to counts once. Pure: times come in.
class RunSummary {
 public:
  void Step(const StepMetrics& metrics);
  /// To the end of `step`, when the job had done `tokens`; steps after it will be done again.
  void GoBackTo(int64_t step, int64_t tokens);
  void Evaluation(int64_t step, double loss) { evaluation_ = {step, loss}; }
  void Checkpoint(const std::string& path) { checkpoint_ = path; }

  /// A few lines, each ended; empty if there was no step. `seconds`: since the first step began.
  std::string Text(double seconds) const;
  /// The losses of the steps as a picture of `width` columns, of whole lines; empty if there are
  /// too few. See PlotCurve().
  std::string Plot(size_t width, bool is_unicode) const;

 private:
  int64_t first_step_ = 0;
  float first_loss_ = 0;
  int64_t tokens_before_ = 0;  // of the job, before the first step
  int64_t last_step_ = 0;
  float last_loss_ = 0;
  int64_t tokens_ = 0;  // of the job
  /// Steps whose loss was lower than any before, with their losses.
  std::vector<std::pair<int64_t, float>> lowest_;
  double step_seconds_ = 0;
  double data_wait_seconds_ = 0;
  JoinedSeries losses_;
  JoinedSeries tokens_per_second_;
  JoinedSeries mfu_;
  std::optional<std::pair<int64_t, double>> evaluation_;
  std::string checkpoint_;
};

}  // namespace fsdprun::worker
