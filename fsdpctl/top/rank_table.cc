#include "fsdpctl/top/rank_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdpctl/top/amounts.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

constexpr int kNodeColumns = 16;
/// Less tells nothing.
constexpr int kDoingColumns = 13;

std::string CpuCell(const RankRow& row) {
  return row.worker != nullptr && row.worker->has_cpus() && !row.HasEnded()
             ? absl::StrFormat("%.0f%%", 100 * row.worker->cpus())
             : kUnknown;
}

/// 0: not known.
std::string BytesCell(int64_t bytes) { return bytes == 0 ? kUnknown : BytesText(bytes); }

std::string StateCell(const RankRow& row) {
  return row.HasEnded() || row.vitals() == nullptr
             ? kUnknown
             : ScreenText(std::string(1, static_cast<char>(row.vitals()->state())));
}

/// What it says of itself.
struct OwnCells {
  std::string step = kUnknown;
  std::string step_time = kUnknown;
  std::string collectives = kUnknown;
  std::string data = kUnknown;
  std::string device = kUnknown;
  std::string loss = kUnknown;
  std::string speed = kUnknown;
};

OwnCells OwnCellsOf(const RankRow& row) {
  OwnCells cells;
  if (row.own == nullptr) {
    return cells;
  }
  const v1::OwnVitals& own = *row.own;
  cells.step = own.step() >= 0 ? absl::StrCat(own.step()) : kUnknown;
  if (own.step_ns() > 0) {
    cells.step_time = TimeText(own.step_ns());
    cells.collectives = ShareText(own.collective_wait_ns(), own.step_ns());
    cells.data = ShareText(own.data_wait_ns(), own.step_ns());
  }
  cells.device = BytesCell(own.device_bytes());
  cells.loss = own.has_bad_loss()          ? "nan"
               : std::isfinite(own.loss()) ? NumberText(own.loss())
                                           : kUnknown;
  cells.speed = own.tokens_per_second() > 0 ? CountText(own.tokens_per_second()) : kUnknown;
  return cells;
}

}  // namespace

std::vector<Column> RankColumns(const std::vector<RankRow>& rows, SortKey sort) {
  int node = 4;
  int step = 5;
  int rank = 4;
  for (const RankRow& row : rows) {
    rank = std::max(rank, ColumnsOf(absl::StrCat(row.rank)));
    node = std::max(node, std::min(kNodeColumns, ColumnsOf(row.node)));
    if (row.own != nullptr) {
      step = std::max(step, ColumnsOf(absl::StrCat(row.own->step())));
    }
  }
  return {{"RANK", rank, true, 0, sort == SortKey::kRank},
          {"NODE", node, false, 1},
          {"PID", 7, true, 9},
          {"S", 1, false, 2},
          {"STEP", step, true, 0, sort == SortKey::kStep},
          {"TIME", 6, true, 3, sort == SortKey::kStepTime},
          {"COLL", 4, true, 7},
          {"DATA", 4, true, 8},
          {"CPU", 6, true, 6, sort == SortKey::kCpu},
          {"RSS", 5, true, 4, sort == SortKey::kMemory},
          {"PSS", 5, true, 10},
          {"DEVICE", 6, true, 5},
          {"LOSS", 7, true, 11},
          {"TOK/S", 6, true, 12},
          {"HEARD", 6, true, 13},
          {"DOING", kDoingColumns, false, 0}};
}

Cells RankCells(const RankRow& row) {
  const v1::WorkerVitals* vitals = row.HasEnded() ? nullptr : row.vitals();
  const OwnCells own = OwnCellsOf(row);
  return {absl::StrCat(row.rank),
          row.node,
          vitals != nullptr ? absl::StrCat(vitals->pid()) : kUnknown,
          StateCell(row),
          own.step,
          own.step_time,
          own.collectives,
          own.data,
          CpuCell(row),
          vitals != nullptr ? BytesCell(vitals->rss_bytes()) : kUnknown,
          vitals != nullptr ? BytesCell(vitals->pss_bytes()) : kUnknown,
          vitals != nullptr ? own.device : kUnknown,
          own.loss,
          own.speed,
          vitals != nullptr ? TimeText(row.worker->vitals_age_ns()) : kUnknown,
          DoingOf(row)};
}

Style StyleOf(const RankRow& row) {
  switch (row.trouble) {
    case Trouble::kHang:
    case Trouble::kStopped:
      return Style::kBad;
    case Trouble::kSilent:
    case Trouble::kSlow:
    case Trouble::kBehind:
      return Style::kWarning;
    case Trouble::kNone:
      return row.HasEnded()                                  ? Style::kFaint
             : row.own != nullptr && row.own->has_bad_loss() ? Style::kBad
                                                             : Style::kPlain;
  }
  return Style::kPlain;
}

}  // namespace fsdprun::top
