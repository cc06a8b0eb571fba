#include "fsdpctl/top/header.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdpctl/jobs/status_text.h"
#include "fsdpctl/top/amounts.h"
#include "fsdpctl/top/screen_text.h"
#include "fsdpctl/top/totals.h"

namespace fsdprun::top {
namespace {

constexpr int kLabelColumns = 9;
/// Of the sentence of one finding.
constexpr int kLinesOfFinding = 3;
constexpr int kFindingsShown = 3;

/// The greater, the sooner there is no room for it.
enum Rank {
  kAlways,
  kTrouble,
  kFinding,
  kStep,
  kSummary,
  kWorld,
  kSpeed,
  kFailure,
  kMemory,
  kEvent,
  kPlace
};

struct Part {
  Rank rank = kAlways;
  Line line;
};
using Parts = std::vector<Part>;

void Add(Rank rank, const char* label, absl::string_view text, Style style, int columns,
         Parts* parts) {
  if (!text.empty()) {
    parts->push_back(
        {rank, {{style, Fit(absl::StrCat(Fit(label, kLabelColumns), ScreenText(text)), columns)}}});
  }
}

Line TitleOf(const v1::JobStatus& status, int columns) {
  return {{Style::kTitle, Fit(ScreenText(absl::StrCat("fsdpctl top  ", status.job(), "  ",
                                                      status.phase(), ": ", status.reason())),
                              columns)}};
}

std::string Counted(int count, const char* what) {
  return count == 0 ? "" : absl::StrCat(", ", count, " ", what);
}

bool IsHang(const v1::Finding& finding) { return finding.kind() == "hang"; }

bool Hangs(const v1::JobStatus& status) {
  return std::any_of(status.findings().begin(), status.findings().end(), IsHang);
}

/// Hangs first.
void AddFindings(const v1::JobStatus& status, int columns, Parts* parts) {
  std::vector<const v1::Finding*> findings;
  for (const v1::Finding& finding : status.findings()) {
    findings.push_back(&finding);
  }
  std::stable_partition(findings.begin(), findings.end(),
                        [](const v1::Finding* finding) { return IsHang(*finding); });
  int shown = 0;
  for (const v1::Finding* finding : findings) {
    if (shown++ == kFindingsShown) {
      Add(kFinding, "", absl::StrCat("and ", status.findings_size() - kFindingsShown, " more"),
          Style::kBad, columns, parts);
      break;
    }
    std::string label = IsHang(*finding) ? "HANG" : "SLOW";
    const std::string text =
        ScreenText(absl::StrCat(finding->what(), " (", TimeText(finding->age_ns()), " ago)"));
    for (const std::string& line : Wrap(text, columns - kLabelColumns, kLinesOfFinding)) {
      Add(kFinding, label.c_str(), line, IsHang(*finding) ? Style::kBad : Style::kWarning, columns,
          parts);
      label.clear();
    }
  }
}

/// What becomes of it, and what goes wrong.
void AddTroubles(const Snapshot& snapshot, int columns, Parts* parts) {
  const v1::JobStatus& status = snapshot.status;
  if (status.has_exit_code()) {
    const bool is_over = status.phase() == "finished";
    Add(kTrouble, "END",
        absl::StrCat("the job ", is_over ? "ended" : "ends", " with exit code ", status.exit_code(),
                     is_over ? "; q quits" : ""),
        status.exit_code() == 0 ? Style::kTitle : Style::kBad, columns, parts);
  }
  Add(kTrouble, "LINK", snapshot.trouble, Style::kBad, columns, parts);
  if (status.has_kill_in_ns()) {
    Add(kTrouble, "STOPPING",
        absl::StrCat("what still runs is killed in ", TimeText(status.kill_in_ns())),
        Style::kWarning, columns, parts);
  }
  AddFindings(status, columns, parts);
}

std::string StepText(const Snapshot& snapshot, const Totals& totals) {
  const v1::JobStatus& status = snapshot.status;
  if (totals.step < 0) {
    return "none told in this world";
  }
  std::string text = absl::StrCat(totals.step);
  if (totals.total > 0) {
    const double share = static_cast<double>(totals.step) / static_cast<double>(totals.total);
    absl::StrAppend(&text, " of ", totals.total, absl::StrFormat(" (%.1f %%)", 100 * share));
  }
  if (status.has_progress_age_ns()) {
    absl::StrAppend(&text, ", ", TimeText(status.progress_age_ns()), " ago");
  }
  const auto rest = RestNs(totals, snapshot.steps_per_second);
  if (rest.has_value() && !Hangs(status)) {
    absl::StrAppend(&text, ", ", TimeText(*rest), " to go");
  }
  if (totals.has_bad_loss) {
    absl::StrAppend(&text, ", loss nan");
  } else if (totals.loss.has_value()) {
    absl::StrAppend(&text, ", loss ", NumberText(*totals.loss));
  } else if (!status.progress().text().empty() && status.has_progress_age_ns()) {
    absl::StrAppend(&text, ", ", status.progress().text());
  }
  return text;
}

std::string WorldText(const v1::JobStatus& status, const Totals& totals) {
  const auto members = std::count_if(status.nodes().begin(), status.nodes().end(),
                                     [](const auto& node) { return node.first_rank() >= 0; });
  const int left = std::max(0, status.max_restarts() - status.restarts_used());
  return absl::StrCat("generation ", status.generation(), ", ", status.world_size(), " ranks on ",
                      members, members == 1 ? " node" : " nodes", " of ", status.min_nodes(), ":",
                      status.max_nodes(), Counted(totals.ended, "ended"), ", restarts ",
                      status.restarts_used(), " of ", status.max_restarts(), " (", left, " left)",
                      Counted(status.membership_changes(), "other changes"));
}

std::string TroublesText(const Totals& totals) {
  const std::string text =
      absl::StrCat(Counted(totals.hanging, "hanging"), Counted(totals.stopped, "stopped"),
                   Counted(totals.silent, "silent"), Counted(totals.slow, "slow"),
                   Counted(totals.behind, "behind"));
  return text.empty() ? "" : text.substr(2);
}

std::string SpeedText(const Snapshot& snapshot, const Totals& totals) {
  std::vector<std::string> parts;
  if (totals.tokens_per_second > 0 && !Hangs(snapshot.status)) {  // As it was.
    parts.push_back(absl::StrCat(CountText(totals.tokens_per_second), " tokens/s"));
  }
  if (snapshot.steps_per_second.has_value()) {
    parts.push_back(absl::StrCat(NumberText(*snapshot.steps_per_second), " steps/s"));
  }
  if (totals.median_step_ns > 0) {
    parts.push_back(absl::StrCat(TimeText(totals.median_step_ns), " a step"));
  }
  const v1::TimeLedger& ledger = snapshot.status.ledger();
  if (ledger.has_goodput_ratio()) {
    parts.push_back(absl::StrFormat("goodput %.1f %%", 100 * ledger.goodput_ratio()));
  }
  return absl::StrJoin(parts, ", ");
}

std::string MemoryText(const Totals& totals) {
  std::vector<std::string> parts;
  if (totals.rss > 0) {
    parts.push_back(absl::StrCat("rss ", BytesText(totals.rss)));
  }
  if (totals.pss > 0) {
    parts.push_back(absl::StrCat("pss ", BytesText(totals.pss)));
  }
  if (totals.device > 0) {
    parts.push_back(absl::StrCat("devices ", BytesText(totals.device), " (at most ",
                                 BytesText(totals.device_peak), " on one)"));
  }
  if (totals.cpus > 0) {
    parts.push_back(absl::StrFormat("cpu %.1f", totals.cpus));
  }
  return absl::StrJoin(parts, ", ");
}

std::string PlaceText(const v1::JobStatus& status) {
  const v1::CoordinatorStatus& place = status.coordinator();
  return absl::StrCat("coordinator pid ", place.pid(), " on ", place.node(),
                      place.endpoint().empty() ? "" : " at ", place.endpoint(), " for ",
                      TimeText(status.age_ns()), " (fsdprun ", place.build().release(), ")");
}

Parts PartsOf(const Snapshot& snapshot, const std::vector<RankRow>& ranks, int columns) {
  const v1::JobStatus& status = snapshot.status;
  const Totals totals = TotalsOf(status, ranks);
  Parts parts = {{kAlways, TitleOf(status, columns)}};
  AddTroubles(snapshot, columns, &parts);
  Add(kSummary, "TROUBLE", TroublesText(totals), Style::kWarning, columns, &parts);
  if (status.has_last_failure_age_ns()) {
    Add(kFailure, "failure",
        absl::StrCat(TimeText(status.last_failure_age_ns()), " ago: ", status.last_failure()),
        Style::kWarning, columns, &parts);
  }
  Add(kStep, "step", StepText(snapshot, totals), totals.has_bad_loss ? Style::kBad : Style::kPlain,
      columns, &parts);
  Add(kWorld, "world", WorldText(status, totals), Style::kPlain, columns, &parts);
  Add(kSpeed, "speed", SpeedText(snapshot, totals), Style::kPlain, columns, &parts);
  if (status.ledger().wall_ns() > 0) {
    Add(kPlace, "time", LedgerText(status.ledger(), TimeText(status.ledger().wall_ns())),
        Style::kPlain, columns, &parts);
  }
  Add(kMemory, "memory", MemoryText(totals), Style::kPlain, columns, &parts);
  Add(kPlace, "host", PlaceText(status), Style::kPlain, columns, &parts);
  if (!snapshot.events.empty()) {
    Add(kEvent, "event", snapshot.events.back(), Style::kPlain, columns, &parts);
  }
  return parts;
}

}  // namespace

std::vector<Line> HeaderLines(const Snapshot& snapshot, const std::vector<RankRow>& ranks,
                              int lines_max, int columns) {
  Parts parts = PartsOf(snapshot, ranks, columns);
  while (static_cast<int>(parts.size()) > std::max(1, lines_max)) {
    // The last of the least important ones.
    const auto least = std::max_element(
        parts.rbegin(), parts.rend(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    parts.erase(std::next(least).base());
  }
  std::vector<Line> lines;
  for (Part& part : parts) {
    lines.push_back(std::move(part.line));
  }
  return lines;
}

}  // namespace fsdprun::top
