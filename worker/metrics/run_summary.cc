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

void JoinedSeries::KeepFirst(size_t count) {
  if (count >= this->count()) {
    return;
  }
  const size_t whole = count / per_value_;
  open_count_ = count % per_value_;
  const double open_mean =
      whole < values_.size() ? values_[whole] : open_sum_ / static_cast<double>(per_value_);
  open_sum_ = open_mean * static_cast<double>(open_count_);
  values_.resize(std::min(whole, values_.size()));
}

double JoinedSeries::last() const {
  return open_count_ > 0    ? open_sum_ / static_cast<double>(open_count_)
         : !values_.empty() ? values_.back()
                            : 0;
}

void RunSummary::Step(const StepMetrics& metrics) {
  if (losses_.count() == 0) {
    first_step_ = metrics.step;
    first_loss_ = metrics.loss;
    tokens_before_ =
        metrics.tokens - std::llround(metrics.tokens_per_second * metrics.step_seconds);
  }
  if (std::isfinite(metrics.loss) && (lowest_.empty() || metrics.loss < lowest_.back().second)) {
    lowest_.emplace_back(metrics.step, metrics.loss);
  }
  last_step_ = metrics.step;
  last_loss_ = metrics.loss;
  tokens_ = metrics.tokens;
  step_seconds_ += metrics.step_seconds;
  data_wait_seconds_ += metrics.data_wait_seconds;
  losses_.Add(double{metrics.loss});
  tokens_per_second_.Add(metrics.tokens_per_second);
  mfu_.Add(metrics.mfu);
}

void RunSummary::GoBackTo(int64_t step, int64_t tokens) {
  losses_.KeepFirst(static_cast<size_t>(std::max<int64_t>(0, step - first_step_ + 1)));
  const auto is_undone = [step](const auto& of_step) { return of_step.first > step; };
  std::erase_if(lowest_, is_undone);
  if (evaluation_ && is_undone(*evaluation_)) {
    evaluation_.reset();
  }
  last_step_ = step;
  last_loss_ = static_cast<float>(losses_.last());
  tokens_ = tokens;
}

std::string RunSummary::Text(double seconds) const {
  if (losses_.count() == 0) {
    return "";
  }
  std::string text =
      Printed("  steps       %lld to %lld, %lld tokens in ", static_cast<long long>(first_step_),
              static_cast<long long>(last_step_),
              static_cast<long long>(tokens_ - tokens_before_)) +
      FormatDuration(seconds) + "\n";
  const double share = step_seconds_ > 0 ? 100 * data_wait_seconds_ / step_seconds_ : 0;
  const double mfu = MedianOf(mfu_.values());
  text += "  speed       " + FormatRate(MedianOf(tokens_per_second_.values())) + " tok/s (median)" +
          (mfu > 0 ? Printed(", %.1f %% MFU", 100 * mfu) : "") +
          Printed("; %.2f %% of the steps' time waiting for data\n", share);
  text += Printed("  loss        %.4f to %.4f", double{first_loss_}, double{last_loss_});
  if (!lowest_.empty()) {
    text += Printed(", lowest %.4f at step %lld", double{lowest_.back().second},
                    static_cast<long long>(lowest_.back().first));
  }
  if (evaluation_) {
    text += Printed("; eval %.4f after step %lld", evaluation_->second,
                    static_cast<long long>(evaluation_->first));
  }
  text += "\n  checkpoint  " + (checkpoint_.empty() ? "none was saved" : checkpoint_) + "\n";
  return text;
}

std::string RunSummary::Plot(size_t width, bool is_unicode) const {
  return PlotCurve(losses_.values(), {.first = first_step_,
                                      .last = last_step_,
                                      .width = width,
                                      .height = kPlotHeight,
                                      .is_unicode = is_unicode});
}

}  // namespace fsdprun::worker
