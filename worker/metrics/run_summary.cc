#include "worker/metrics/run_summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "worker/metrics/plot.h"
#include "worker/metrics/progress.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kPlotHeight = 10;

template <class... Args>
std::string Printed(const char* format, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void JoinedSeries::Add(double value) {
  open_sum_ += value;
  if (++open_count_ < per_value_) {
    return;
  }
  values_.push_back(open_sum_ / static_cast<double>(open_count_));
  open_sum_ = 0;
  open_count_ = 0;
  if (values_.size() < max_values_) {
    return;
  }
  for (size_t i = 0; i + 1 < values_.size(); i += 2) {
    values_[i / 2] = (values_[i] + values_[i + 1]) / 2;
  }
  values_.resize(values_.size() / 2);
  per_value_ *= 2;
}

void RunSummary::Step(const StepMetrics& metrics) {
  if (steps_ == 0) {
    first_step_ = metrics.step;
    first_loss_ = metrics.loss;
  }
  ++steps_;
  tokens_ += std::llround(metrics.tokens_per_second * metrics.step_seconds);
  if (steps_ == 1 || metrics.loss < lowest_.second) {
    lowest_ = {metrics.step, metrics.loss};
  }
  last_ = metrics;
  step_seconds_ += metrics.step_seconds;
  data_wait_seconds_ += metrics.data_wait_seconds;
  losses_.Add(double{metrics.loss});
  tokens_per_second_.Add(metrics.tokens_per_second);
  mfu_.Add(metrics.mfu);
}

std::string RunSummary::Text(double seconds) const {
  if (steps_ == 0) {
    return "";
  }
  std::string text =
      Printed("  steps       %lld to %lld, %lld tokens in ", static_cast<long long>(first_step_),
              static_cast<long long>(last_.step), static_cast<long long>(tokens_)) +
      FormatDuration(seconds) + "\n";
  const double share = step_seconds_ > 0 ? 100 * data_wait_seconds_ / step_seconds_ : 0;
  const double mfu = MedianOf(mfu_.values());
  text += "  speed       " + FormatRate(MedianOf(tokens_per_second_.values())) + " tok/s (median)" +
          (mfu > 0 ? Printed(", %.1f %% MFU", 100 * mfu) : "") +
          Printed("; %.2f %% of the steps' time waiting for data\n", share);
  text +=
      Printed("  loss        %.4f to %.4f, lowest %.4f at step %lld", double{first_loss_},
              double{last_.loss}, double{lowest_.second}, static_cast<long long>(lowest_.first));
  if (evaluation_) {
    text += Printed("; eval %.4f after step %lld", evaluation_->second,
                    static_cast<long long>(evaluation_->first));
  }
  text += "\n  checkpoint  " + (checkpoint_.empty() ? "none was saved" : checkpoint_) + "\n";
  return text;
}

std::string RunSummary::Plot(size_t width, bool is_unicode) const {
  return PlotCurve(losses_.values(), {.first = first_step_,
                                      .last = last_.step,
                                      .width = width,
                                      .height = kPlotHeight,
                                      .is_unicode = is_unicode});
}

}  // namespace fsdprun::worker
