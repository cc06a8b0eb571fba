#include "worker/data/mixture.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace fsdprun::worker {
namespace {

constexpr double kMillion = 1e6;
constexpr int64_t kMaxParts = int64_t{1} << 21;

/// The weight in millionths.
int64_t Millionths(double weight) {
  const double scaled = weight * kMillion;
  if (!(weight > 0) || weight > kMillion) {
    throw ConfigError("configuration: data.mixture: weight = " + Excerpt(Json(weight)) +
                      ": expected a number above 0 and at most 1e6");
  }
  const int64_t whole = std::llround(scaled);
  constexpr double kRounding = 1e-3;  // far above that of a double
  if (whole < 1 || std::abs(scaled - static_cast<double>(whole)) > kRounding) {
    throw ConfigError("configuration: data.mixture: weight = " + Excerpt(Json(weight)) +
                      ": expected at most six decimals");
  }
  return whole;
}

}  // namespace

std::vector<int64_t> WholeWeights(const std::vector<double>& weights) {
  std::vector<int64_t> whole;
  int64_t divisor = 0;
  for (const double weight : weights) {
    whole.push_back(Millionths(weight));
    divisor = std::gcd(divisor, whole.back());
  }
  int64_t parts = 0;
  for (int64_t& weight : whole) {
    weight /= divisor;
    parts += weight;
    if (weight > kMaxParts || parts > kMaxParts) {
      throw ConfigError(
          "configuration: data.mixture: the weights are too far apart or too fine: in whole "
          "numbers they add up to more than 2^21; round them, such as to three decimals");
    }
  }
  return whole;
}

MixtureTurns::MixtureTurns(std::vector<int64_t> weights) : weights_(std::move(weights)) {
  const int64_t parts = std::accumulate(weights_.begin(), weights_.end(), int64_t{0});
  const auto count = static_cast<int64_t>(weights_.size());
  // Both sides of Tijdeman's rule times `parts` times 2 * count - 2, so that all are integers.
  const int64_t scale = count > 1 ? 2 * count - 2 : 1;
  std::vector<int64_t> taken(weights_.size(), 0);
  for (int64_t n = 1; n <= parts; ++n) {
    size_t best = 0;
    // (1 - 1 / scale - due) / weight, the time until the source must have had its turn.
    double best_slack = INFINITY;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const int64_t due = (weights_[i] * n - taken[i] * parts) * scale;
      const double slack =
          static_cast<double>(parts * (scale - 1) - due) / static_cast<double>(weights_[i]);
      if (due >= parts && slack < best_slack) {
        best = i;
        best_slack = slack;
      }
    }
    sources_.push_back(static_cast<int16_t>(best));
    indices_.push_back(taken[best]++);
  }
}

MixtureTurns::Turn MixtureTurns::At(int64_t sample) const {
  const auto period = static_cast<int64_t>(sources_.size());
  const auto place = static_cast<size_t>(sample % period);
  const int64_t source = sources_[place];
  return {source, sample / period * weights_[static_cast<size_t>(source)] + indices_[place]};
}

}  // namespace fsdprun::worker
