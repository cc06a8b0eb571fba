#include "fsdpctl/top/rank_rows.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdpctl/top/amounts.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
/// Nodes tell every second, and less often where there are more than 256 of them.
constexpr int64_t kSilentAfter = 5 * kSecond;
/// Of that many nodes.
constexpr int kNodesPerSecond = 256;
/// What is told of a rank has been on its way for up to so long.
constexpr int64_t kOnTheWay = kSecond / 4;
constexpr int64_t kShortestStep = 1'000'000;
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

/// Who is in the highest step, and of several the one who was looked at first.
const v1::WorkerStatus* LeaderOf(const v1::JobStatus& status) {
  const auto place = [](const v1::WorkerStatus& worker) {
    return std::pair(worker.vitals().own().step(), worker.vitals_age_ns());
  };
  const v1::WorkerStatus* leader = nullptr;
  for (const v1::WorkerStatus& worker : status.workers()) {
    const bool is_known = worker.vitals().has_own() && worker.vitals().own().step() >= 0;
    if (is_known && (leader == nullptr || place(worker) > place(*leader))) {
      leader = &worker;
    }
  }
  return leader;
}

/// What is the same for all rows.
struct Circumstances {
  std::set<int> hanging;
  std::set<int> slow;
  const v1::WorkerStatus* leader = nullptr;
  int64_t silent_after = 0;
  /// Who has never been heard of might have been.
  bool is_late = false;
  bool runs = false;
};

Circumstances CircumstancesOf(const v1::JobStatus& status, const Sight& sight) {
  Circumstances all{FoundRanks(status, "hang"), FoundRanks(status, "straggler")};
  all.leader = LeaderOf(status);
  const int seconds = (status.nodes_size() + kNodesPerSecond - 1) / kNodesPerSecond;
  const int64_t silent_after = kSilentAfter * std::max(1, seconds);
  all.silent_after = silent_after + sight.told_ns;
  // No coordinator has heard of workers for longer than it runs.
  all.is_late = std::min(sight.running_ns, status.age_ns()) > all.silent_after;
  all.runs = status.phase() == "running";
  return all;
}

/// Each node is looked at at a time of its own: who was looked at before the leader may have got
/// on since.
bool IsBehind(const RankRow& row, const v1::WorkerStatus* leader) {
  if (leader == nullptr || row.own == nullptr || row.own->step() < 0) {
    return false;
  }
  const v1::OwnVitals& first = leader->vitals().own();
  const int64_t times[] = {first.step_ns(), row.own->step_ns()};
  const int64_t step_ns = std::max(
      times[0] > 0 && times[1] > 0 ? std::min(times[0], times[1]) : std::max(times[0], times[1]),
      kShortestStep);
  const int64_t before =
      kOnTheWay + std::max<int64_t>(0, row.worker->vitals_age_ns() - leader->vitals_age_ns());
  const int64_t may_be = 1 + (before + step_ns - 1) / step_ns;
  return first.step() - row.own->step() > may_be;
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
  if (row.is_old || (row.vitals() == nullptr && all.is_late)) {
    return Trouble::kSilent;
  }
  if (all.slow.count(row.rank) > 0) {
    return Trouble::kSlow;
  }
  return IsBehind(row, all.leader) ? Trouble::kBehind : Trouble::kNone;
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

/// When its node has told of it last.
std::string SeenDoing(const RankRow& row) {
  const v1::WorkerVitals* const vitals = row.vitals();
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

}  // namespace

std::vector<RankRow> RowsOf(const v1::JobStatus& status, const Sight& sight) {
  std::map<int, const v1::WorkerStatus*> workers;
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.emplace(worker.rank(), &worker);
  }
  const Circumstances all = CircumstancesOf(status, sight);
  std::vector<RankRow> rows;
  for (const v1::NodeStatus& node : status.nodes()) {
    const std::string name = ScreenText(node.name());
    for (int i = 0; node.first_rank() >= 0 && i < node.workers(); ++i) {
      RankRow row{.rank = node.first_rank() + i, .node = name};
      const auto worker = workers.find(row.rank);
      row.worker = worker == workers.end() ? nullptr : worker->second;
      row.own = row.vitals() != nullptr && row.vitals()->has_own() ? &row.vitals()->own() : nullptr;
      row.is_old = row.vitals() != nullptr && row.worker->vitals_age_ns() > all.silent_after;
      row.trouble = TroubleOf(row, all);
      rows.push_back(std::move(row));
    }
  }
  std::sort(rows.begin(), rows.end(),
            [](const RankRow& a, const RankRow& b) { return a.rank < b.rank; });
  return rows;
}

bool ComesBefore(const std::optional<double>& a, const std::optional<double>& b, bool is_reversed) {
  if (!a.has_value() || !b.has_value()) {
    return a.has_value() && !b.has_value();
  }
  return is_reversed ? *a > *b : *a < *b;
}

std::vector<RankRow> Arranged(std::vector<RankRow> rows, const View& view) {
  if (view.only_problems) {
    rows.erase(std::remove_if(rows.begin(), rows.end(),
                              [](const RankRow& row) { return row.trouble == Trouble::kNone; }),
               rows.end());
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const RankRow& a, const RankRow& b) {
    return ComesBefore(SortValue(a, view.sort), SortValue(b, view.sort), view.is_reversed);
  });
  return rows;
}

std::string DoingOf(const RankRow& row) {
  if (row.HasEnded()) {
    return "ended";
  }
  if (row.vitals() == nullptr) {
    return kUnknown;
  }
  if (row.trouble == Trouble::kSilent) {
    return absl::StrCat("nothing heard for ", TimeText(row.worker->vitals_age_ns()));
  }
  return row.is_old && row.trouble != Trouble::kNone
             ? absl::StrCat(TimeText(row.worker->vitals_age_ns()), " ago: ", SeenDoing(row))
             : SeenDoing(row);
}

}  // namespace fsdprun::top
