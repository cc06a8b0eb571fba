#include "fsdpctl/top/totals.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "fsdpctl/top/amounts.h"

namespace fsdprun::top {
namespace {

/// More is no time that anybody waits.
constexpr double kLongestRest = 1e18;

void CountTrouble(const RankRow& row, Totals* totals) {
  switch (row.trouble) {
    case Trouble::kHang:
      ++totals->hanging;
      break;
    case Trouble::kStopped:
      ++totals->stopped;
      break;
    case Trouble::kSilent:
      ++totals->silent;
      break;
    case Trouble::kSlow:
      ++totals->slow;
      break;
    case Trouble::kBehind:
      ++totals->behind;
      break;
    case Trouble::kNone:
      break;
  }
}

void AddOwn(const v1::OwnVitals& own, Totals* totals) {
  totals->device = AddUp(totals->device, own.device_bytes());
  totals->has_bad_loss = totals->has_bad_loss || own.has_bad_loss();
  totals->device_peak = std::max(totals->device_peak, own.device_peak_bytes());
  if (!totals->loss.has_value() && std::isfinite(own.loss())) {
    totals->loss = own.loss();
  }
  if (totals->tokens_per_second == 0) {
    totals->tokens_per_second = own.tokens_per_second();
  }
  if (own.step() >= 0) {
    totals->step = totals->step < 0 ? own.step() : std::min(totals->step, own.step());
    totals->total = std::max(totals->total, own.total());
  }
}

/// Findings name only the first of their ranks.
void CountUnnamed(const v1::JobStatus& status, Totals* totals) {
  for (const v1::Finding& finding : status.findings()) {
    const int unnamed = std::max(0, finding.rank_count() - finding.ranks_size());
    (finding.kind() == "hang" ? totals->hanging : totals->slow) += unnamed;
  }
}

}  // namespace

Totals TotalsOf(const v1::JobStatus& status, const std::vector<RankRow>& ranks) {
  Totals totals;
  std::vector<int64_t> step_times;
  for (const RankRow& row : ranks) {
    totals.ended += row.HasEnded() ? 1 : 0;
    CountTrouble(row, &totals);
    if (row.vitals() == nullptr || row.HasEnded()) {
      continue;
    }
    totals.cpus += row.worker->cpus();
    totals.rss = AddUp(totals.rss, row.vitals()->rss_bytes());
    totals.pss = AddUp(totals.pss, row.vitals()->pss_bytes());
    if (row.own != nullptr) {
      AddOwn(*row.own, &totals);
    }
    if (row.own != nullptr && row.own->step_ns() > 0) {
      step_times.push_back(row.own->step_ns());
    }
  }
  CountUnnamed(status, &totals);
  if (!step_times.empty()) {
    const auto middle = step_times.begin() + static_cast<std::ptrdiff_t>(step_times.size() / 2);
    std::nth_element(step_times.begin(), middle, step_times.end());
    totals.median_step_ns = *middle;
  }
  if (status.has_progress_age_ns()) {
    totals.step = status.progress().step();
    totals.total = status.progress().total() >= 0 ? status.progress().total() : totals.total;
  }
  return totals;
}

std::optional<int64_t> RestNs(const Totals& totals, const std::optional<double>& steps_per_second) {
  const bool is_seen = steps_per_second.has_value() && *steps_per_second > 0;
  if (totals.step < 0 || totals.total < totals.step || (!is_seen && totals.median_step_ns <= 0)) {
    return std::nullopt;
  }
  const double step_ns =
      is_seen ? 1e9 / *steps_per_second : static_cast<double>(totals.median_step_ns);
  const double rest = step_ns * static_cast<double>(totals.total - totals.step);
  return rest < kLongestRest ? std::optional(static_cast<int64_t>(rest)) : std::nullopt;
}

}  // namespace fsdprun::top
