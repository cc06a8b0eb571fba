#include "fsdpctl/jobs/status_text.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "agent/output/line_format.h"

namespace fsdprun {
namespace {

using json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

/// `3.2 s`, `4 min 5 s`, `2 h 13 min`, `3 d 4 h`.
std::string Age(int64_t ns) {
  const int64_t seconds = ns / 1'000'000'000;
  if (seconds < 60) {
    return absl::StrFormat("%.1f s", static_cast<double>(ns) / 1e9);
  }
  if (seconds < 3600) {
    return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  }
  if (seconds < 86400) {
    return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
  }
  return absl::StrCat(seconds / 86400, " d ", seconds / 3600 % 24, " h");
}

/// No byte of another's text may steer the terminal.
std::string Clean(absl::string_view text) {
  std::string clean = ReplaceInvalidUtf8(text);
  std::replace_if(
      clean.begin(), clean.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  // U+0080 to U+009F, such as CSI.
  for (size_t at = 0; (at = clean.find('\xc2', at)) != std::string::npos; ++at) {
    if (static_cast<unsigned char>(clean[at + 1]) < 0xa0) {
      clean.replace(at, 2, "?");
    }
  }
  return clean;
}

std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool is_last = i + 1 == row.size();
      absl::StrAppend(&line, row[i],
                      is_last ? "" : std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string NodeTable(const v1::JobStatus& status) {
  std::vector<Row> rows = {{"NODE", "ADDRESS", "RANKS", "HEARD", "STATE"}};
  for (const v1::NodeStatus* node : NodesInOrder(status)) {
    rows.push_back({Clean(node->name()), node->address(), RanksText(*node),
                    absl::StrCat(Age(node->heard_age_ns()), " ago"), NodeStateText(*node)});
  }
  return Table(rows);
}

std::string ProgressText(const v1::JobStatus& status) {
  if (!status.has_progress_age_ns()) {
    return "none reported in this world";
  }
  const v1::Progress& progress = status.progress();
  return absl::StrCat("step ", progress.step(),
                      progress.total() >= 0 ? absl::StrCat(" of ", progress.total()) : "",
                      progress.text().empty() ? "" : absl::StrCat(", ", Clean(progress.text())),
                      " (", Age(status.progress_age_ns()), " ago)");
}

}  // namespace

std::vector<const v1::NodeStatus*> NodesInOrder(const v1::JobStatus& status) {
  std::vector<const v1::NodeStatus*> nodes;
  for (const v1::NodeStatus& node : status.nodes()) {
    nodes.push_back(&node);
  }
  const auto order = [](const v1::NodeStatus* node) {
    return std::pair(node->first_rank() < 0, node->first_rank());
  };
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](const auto* a, const auto* b) { return order(a) < order(b); });
  return nodes;
}

std::string RanksText(const v1::NodeStatus& node) {
  if (node.first_rank() < 0) {
    return "-";
  }
  const int last = node.first_rank() + node.workers() - 1;
  return last == node.first_rank() ? absl::StrCat(last)
                                   : absl::StrCat(node.first_rank(), "-", last);
}

std::string NodeStateText(const v1::NodeStatus& node) {
  return absl::StrCat(node.state(),
                      node.draining()  ? ", draining"
                      : node.leaving() ? ", leaving"
                                       : "",
                      node.left_out() ? ", left out" : "",
                      !node.connected() ? ", lost its stream"
                      : node.suspect()  ? ", silent"
                                        : "");
}

std::string LedgerText(const v1::TimeLedger& ledger, absl::string_view wall) {
  std::vector<v1::TimeLedger::Entry> entries(ledger.entries().begin(), ledger.entries().end());
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.ns() > b.ns(); });
  std::vector<std::string> parts;
  for (const v1::TimeLedger::Entry& entry : entries) {
    const double part = static_cast<double>(entry.ns()) / static_cast<double>(ledger.wall_ns());
    if (part >= 0.0005) {
      parts.push_back(absl::StrFormat("%s %.1f %%", entry.bucket(), 100 * part));
    }
  }
  return absl::StrCat(absl::StrJoin(parts, ", "), " of ", wall,
                      ledger.repeated_steps() == 0
                          ? ""
                          : absl::StrCat("; ", ledger.repeated_steps(), " steps done again"));
}

std::string StatusText(const v1::JobStatus& status) {
  const v1::CoordinatorStatus& coordinator = status.coordinator();
  std::vector<Row> rows = {
      {"job", Clean(status.job())},
      {"phase", absl::StrCat(status.phase(), ": ", Clean(status.reason()))},
      {"world", absl::StrCat("generation ", status.generation(), ", ", status.world_size(),
                             " workers; nodes ", status.min_nodes(), ":", status.max_nodes())},
      {"progress", ProgressText(status)},
      {"restarts", absl::StrCat(status.restarts_used(), " of ", status.max_restarts(), "; ",
                                status.membership_changes(), " other changes of the world")},
      {"coordinator",
       absl::StrCat("pid ", coordinator.pid(), " on ", Clean(coordinator.node()),
                    coordinator.endpoint().empty() ? "" : " at ", coordinator.endpoint(), ", for ",
                    Age(status.age_ns()), " (fsdprun ", coordinator.build().release(), ")")},
  };
  if (status.ledger().wall_ns() > 0) {
    rows.push_back({"time", LedgerText(status.ledger(), Age(status.ledger().wall_ns()))});
  }
  if (status.has_kill_in_ns()) {
    rows.push_back({"stopping", absl::StrCat("what still runs is killed in ",
                                             Age(std::max<int64_t>(0, status.kill_in_ns())))});
  }
  if (status.has_last_failure_age_ns()) {
    rows.push_back({"last failure", absl::StrCat(Clean(status.last_failure()), " (",
                                                 Age(status.last_failure_age_ns()), " ago)")});
  }
  for (const v1::Finding& finding : status.findings()) {
    rows.push_back({finding.kind(), absl::StrCat(Clean(finding.what()), " (found ",
                                                 Age(finding.age_ns()), " ago)")});
  }
  if (status.has_exit_code()) {
    rows.push_back({"exit code", absl::StrCat(status.exit_code())});
  }
  return absl::StrCat(Table(rows), status.nodes_size() > 0 ? "\n" + NodeTable(status) : "");
}

std::string JobListText(const std::vector<JobEntry>& jobs, int64_t now_ms) {
  std::vector<Row> rows = {{"JOB", "PID", "RUNS FOR", "ENDPOINT"}};
  for (const JobEntry& job : jobs) {
    rows.push_back({Clean(job.run_id), absl::StrCat(job.pid),
                    Age(std::max<int64_t>(0, now_ms - job.began_ms) * 1'000'000),
                    job.endpoint.empty() ? "-" : job.endpoint});
  }
  return Table(rows);
}

std::string EventText(absl::string_view line) {
  const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
  absl::Time time;
  if (!event.is_object() || !event.contains("event") || !event.contains("time") ||
      !event.at("time").is_string() ||
      !absl::ParseTime(absl::RFC3339_full, event.at("time").get<std::string>(), &time, nullptr)) {
    return Clean(line);
  }
  std::string text = absl::FormatTime("%H:%M:%E3S", time, absl::LocalTimeZone());
  absl::StrAppend(&text, "  ",
                  event.at("event").is_string() ? event.at("event").get<std::string>() : "?");
  for (const auto& [key, value] : event.items()) {
    const bool is_of_all = key == "v" || key == "event" || key == "time" || key == "job" ||
                           key == "node" || key == "from";
    if (is_of_all || value.is_null()) {
      continue;
    }
    absl::StrAppend(&text, "  ", key, "=",
                    value.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return Clean(text);
}

}  // namespace fsdprun
