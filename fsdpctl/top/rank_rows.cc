#include "fsdpctl/top/rank_rows.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdpctl/top/amounts.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
/// Nodes tell every second, and less often where there are more than 256 of them.
constexpr int64_t kSilentAfter = 5 * kSecond;
/// A collective is worth its time on the screen from then on.
constexpr int64_t kLongCollective = kSecond;

/// The ranks that findings of a kind are about.
std::set<int> FoundRanks(const v1::JobStatus& status, const char* kind) {
  std::set<int> ranks;
  for (const v1::Finding& finding : status.findings()) {
    if (finding.kind() == kind) {
      ranks.insert(finding.ranks().begin(), finding.ranks().end());
    }
  }
  return ranks;
}

/// What is the same for all rows.
struct Circumstances {
  std::set<int> hanging;
  std::set<int> slow;
  int64_t highest_step = -1;
  int64_t silent_after = 0;
  bool runs = false;
};

Circumstances CircumstancesOf(const v1::JobStatus& status) {
  Circumstances all{FoundRanks(status, "hang"), FoundRanks(status, "straggler")};
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.vitals().has_own()) {
      all.highest_step = std::max(all.highest_step, worker.vitals().own().step());
    }
  }
  all.silent_after = kSilentAfter * std::max(1, status.nodes_size() / 256);
  all.runs = status.phase() == "running";
  return all;
}

bool IsStopped(const v1::WorkerVitals* vitals) {
  return vitals != nullptr &&
         (vitals->state() == 'T' || vitals->state() == 't' || vitals->state() == 'Z');
}

/// A worker that has ended, or is being stopped, owes nothing.
Trouble TroubleOf(const RankRow& row, const Circumstances& all) {
  if (row.HasEnded() || !all.runs) {
    return Trouble::kNone;
  }
  if (all.hanging.count(row.rank) > 0) {
    return Trouble::kHang;
  }
  if (IsStopped(row.vitals())) {
    return Trouble::kStopped;
  }
  if (row.vitals() == nullptr || row.worker->vitals_age_ns() > all.silent_after) {
    return Trouble::kSilent;
  }
  if (all.slow.count(row.rank) > 0) {
    return Trouble::kSlow;
  }
  const bool is_behind =
      row.own != nullptr && row.own->step() >= 0 && row.own->step() + 1 < all.highest_step;
  return is_behind ? Trouble::kBehind : Trouble::kNone;
}

/// What is sorted by, the first first; absent: the row says nothing of it.
std::optional<double> SortValue(const RankRow& row, SortKey key) {
  const v1::WorkerVitals* vitals = row.vitals();
  switch (key) {
    case SortKey::kRank:
      return row.rank;
    case SortKey::kStep:
      return row.own != nullptr && row.own->step() >= 0
                 ? std::optional<double>(static_cast<double>(row.own->step()))
                 : std::nullopt;
    case SortKey::kStepTime:
      return row.own != nullptr && row.own->step_ns() > 0
                 ? std::optional<double>(-static_cast<double>(row.own->step_ns()))
                 : std::nullopt;
    case SortKey::kCpu:
      return vitals != nullptr && row.worker->has_cpus() && !row.HasEnded()
                 ? std::optional<double>(-row.worker->cpus())
                 : std::nullopt;
    case SortKey::kMemory:
      return vitals != nullptr && !row.HasEnded()
                 ? std::optional<double>(-static_cast<double>(vitals->rss_bytes()))
                 : std::nullopt;
  }
  return std::nullopt;
}

std::string InCollective(const v1::OwnVitals& own) {
  std::string text = absl::StrCat("in ", own.collective());
  if (!own.unit().empty()) {
    absl::StrAppend(&text, " of ", own.unit());
  }
  if (own.collective_age_ns() >= kLongCollective) {
    absl::StrAppend(&text, " for ", TimeText(own.collective_age_ns()));
  }
  return text;
}

/// Of one that says nothing of itself: what is seen from outside.
std::string FromOutside(const v1::WorkerVitals& vitals) {
  switch (vitals.state()) {
    case 'R':
      return "computing";
    case 'D':
      return "in the kernel (D)";
    case 'S':
      return "asleep";
    default:
      return "";
  }
}

}  // namespace

std::vector<RankRow> RowsOf(const v1::JobStatus& status) {
  std::map<int, const v1::WorkerStatus*> workers;
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.emplace(worker.rank(), &worker);
  }
  const Circumstances all = CircumstancesOf(status);
  std::vector<RankRow> rows;
  for (const v1::NodeStatus& node : status.nodes()) {
    const std::string name = ScreenText(node.name());
    for (int i = 0; node.first_rank() >= 0 && i < node.workers(); ++i) {
      RankRow row{.rank = node.first_rank() + i, .node = name};
      const auto worker = workers.find(row.rank);
      row.worker = worker == workers.end() ? nullptr : worker->second;
      row.own = row.vitals() != nullptr && row.vitals()->has_own() ? &row.vitals()->own() : nullptr;
      row.trouble = TroubleOf(row, all);
      rows.push_back(std::move(row));
    }
  }
  std::sort(rows.begin(), rows.end(),
            [](const RankRow& a, const RankRow& b) { return a.rank < b.rank; });
  return rows;
}

std::vector<RankRow> Arranged(std::vector<RankRow> rows, const View& view) {
  if (view.only_problems) {
    rows.erase(std::remove_if(rows.begin(), rows.end(),
                              [](const RankRow& row) { return row.trouble == Trouble::kNone; }),
               rows.end());
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const RankRow& a, const RankRow& b) {
    const std::optional<double> left = SortValue(a, view.sort);
    const std::optional<double> right = SortValue(b, view.sort);
    if (!left.has_value() || !right.has_value()) {
      return left.has_value() && !right.has_value();
    }
    return view.is_reversed ? *left > *right : *left < *right;
  });
  return rows;
}

std::string DoingOf(const RankRow& row) {
  const v1::WorkerVitals* vitals = row.vitals();
  if (row.HasEnded()) {
    return "ended";
  }
  if (vitals == nullptr) {
    return kUnknown;
  }
  if (row.trouble == Trouble::kSilent) {
    return absl::StrCat("nothing heard for ", TimeText(row.worker->vitals_age_ns()));
  }
  if (IsStopped(vitals)) {
    return vitals->state() == 'Z'   ? "dead, not collected (Z)"
           : vitals->state() == 't' ? "TRACED, by a debugger (t)"
                                    : "STOPPED (T)";
  }
  if (row.own == nullptr) {
    return FromOutside(*vitals);
  }
  const bool is_inside = row.own->collectives_begun() > row.own->collectives_ended();
  return ScreenText(is_inside && !row.own->collective().empty()
                        ? InCollective(*row.own)
                        : absl::StrReplaceAll(row.own->phase(), {{"_", " "}}));
}

}  // namespace fsdprun::top
