#include "fsdpctl/doctor/report_text.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "fsdpctl/doctor/checks/amounts.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kTextWidth = 96;
constexpr size_t kNameWidth = 15;
constexpr size_t kFindingIndent = 11;

void AppendWords(absl::string_view label, absl::string_view text, std::string* out) {
  std::string line = absl::StrFormat("%*s%-5s", kFindingIndent - 5, "", label);
  for (bool is_first = true; !text.empty(); is_first = false) {
    const size_t space = text.find(' ');
    const absl::string_view word = text.substr(0, space);
    text = space == absl::string_view::npos ? absl::string_view() : text.substr(space + 1);
    if (!is_first && line.size() + 1 + word.size() > kTextWidth) {
      absl::StrAppend(out, line, "\n");
      line.assign(kFindingIndent, ' ');
      is_first = true;
    }
    absl::StrAppend(&line, is_first ? "" : " ", word);
  }
  absl::StrAppend(out, line, "\n");
}

void AppendFinding(const Finding& finding, const std::string& where, std::string* out) {
  absl::StrAppend(out,
                  absl::StrFormat("  %-*s", kFindingIndent - 2, SeverityName(finding.severity)),
                  finding.found, where, "\n");
  if (!finding.why.empty()) {
    AppendWords("why:", finding.why, out);
  }
  if (!finding.what_to_do.empty()) {
    AppendWords("do:", finding.what_to_do, out);
  }
}

std::vector<Finding> InGroup(const std::vector<Finding>& findings, CheckGroup group) {
  std::vector<Finding> in_group;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(in_group),
               [group](const Finding& finding) { return finding.group == group; });
  std::stable_sort(in_group.begin(), in_group.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  return in_group;
}

/// `limits         ok: open files: 20000 (5 more checks, 1 note)`.
std::string FineLine(CheckGroup group, const std::vector<Finding>& findings) {
  const auto notes = std::count_if(findings.begin(), findings.end(), [](const Finding& each) {
    return each.severity == Severity::kNote;
  });
  const auto first = std::find_if(findings.begin(), findings.end(), [](const Finding& each) {
    return each.severity == Severity::kOk;
  });
  const Finding& shown = first == findings.end() ? findings.front() : *first;
  std::string more;
  if (findings.size() > 1) {
    more = absl::StrCat(" (", findings.size() - 1, " more",
                        notes > 0 ? absl::StrCat(", ", notes, notes == 1 ? " note" : " notes") : "",
                        ")");
  }
  return absl::StrFormat("%-*s%s: %s%s\n", kNameWidth, GroupName(group),
                         SeverityName(shown.severity), shown.found, more);
}

void AppendGroups(const std::vector<Finding>& findings, bool shows_all, std::string* out) {
  for (const CheckGroup group : kAllGroups) {
    const std::vector<Finding> in_group = InGroup(findings, group);
    if (in_group.empty()) {
      continue;
    }
    if (!shows_all && WorstOf(in_group) < Severity::kWarning) {
      absl::StrAppend(out, FineLine(group, in_group));
      continue;
    }
    absl::StrAppend(out, GroupName(group), "\n");
    for (const Finding& finding : in_group) {
      if (shows_all || finding.severity >= Severity::kWarning) {
        AppendFinding(finding, "", out);
      }
    }
  }
}

using Row = std::vector<std::string>;

std::string RateOrDash(double rate) { return rate > 0 ? RateText(rate) : "-"; }

Row RowOf(const PairFacts& facts) {
  const RoundTrips& trips = facts.round_trips;
  const char* sign = trips.clock_offset_us < 0 ? "-" : "+";
  return {facts.node,
          facts.address,
          trips.count > 0 ? MicrosText(trips.median_us) : "-",
          trips.count > 0 ? MicrosText(trips.p99_us) : "-",
          trips.count > 0 ? absl::StrCat(sign, MicrosText(std::abs(trips.clock_offset_us))) : "-",
          RateOrDash(facts.to.one_stream),
          RateOrDash(facts.from.one_stream),
          RateOrDash(facts.to.many_streams),
          RateOrDash(facts.from.many_streams)};
}

std::string PairTable(const std::vector<PairReport>& pairs) {
  std::vector<Row> rows = {{"NODE", "ADDRESS", "ROUND TRIP", "99 %", "CLOCK", "1 STREAM TO", "FROM",
                            absl::StrCat(kManyStreams, " STREAMS TO"), "FROM"}};
  for (const PairReport& pair : pairs) {
    rows.push_back(RowOf(pair.facts));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      size_t width = 0;
      for (const Row& each : rows) {
        width = std::max(width, each[column].size());
      }
      const bool is_last = column + 1 == row.size();
      absl::StrAppend(&line, row[column],
                      is_last ? "" : std::string(width - row[column].size() + 2, ' '));
    }
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

/// Of the other nodes, what is the same on several of them once.
void AppendOthers(const std::vector<PairReport>& pairs, bool shows_all, std::string* out) {
  std::vector<Finding> findings;
  std::vector<std::vector<std::string>> nodes;
  for (const PairReport& pair : pairs) {
    for (const Finding& finding : pair.other.findings) {
      if (!shows_all && finding.severity < Severity::kWarning) {
        continue;
      }
      const auto known = std::find(findings.begin(), findings.end(), finding);
      const auto index = static_cast<size_t>(known - findings.begin());
      if (known == findings.end()) {
        findings.push_back(finding);
        nodes.emplace_back();
      }
      nodes[index].push_back(pair.other.node);
    }
  }
  if (findings.empty()) {
    return;
  }
  absl::StrAppend(out, "other nodes\n");
  for (size_t i = 0; i < findings.size(); ++i) {
    AppendFinding(findings[i],
                  absl::StrCat(" (", GroupName(findings[i].group), ", on ",
                               absl::StrJoin(nodes[i], ", "), ")"),
                  out);
  }
}

std::string Counted(int count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string LastLine(const DoctorReport& report, bool shows_all) {
  std::map<Severity, int> counts;
  const auto count = [&counts](const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) {
      ++counts[finding.severity];
    }
  };
  count(report.own.findings);
  count(report.meeting);
  for (const PairReport& pair : report.pairs) {
    count(pair.findings);
    count(pair.other.findings);
  }
  return absl::StrCat("\n", Counted(counts[Severity::kProblem], "problem"), ", ",
                      Counted(counts[Severity::kWarning], "warning"), ", ",
                      Counted(counts[Severity::kNote], "note"),
                      shows_all ? "\n" : "; --all shows everything\n");
}

}  // namespace

std::string ReportText(const DoctorReport& report, bool shows_all) {
  std::string text = absl::StrCat("node ", report.own.node, ", fsdprun ", report.own.release, "\n");
  AppendGroups(report.own.findings, shows_all, &text);
  if (!report.pairs.empty()) {
    absl::StrAppend(&text, "\n", PairTable(report.pairs));
  }
  std::vector<Finding> of_pairs = report.meeting;
  for (const PairReport& pair : report.pairs) {
    of_pairs.insert(of_pairs.end(), pair.findings.begin(), pair.findings.end());
  }
  AppendGroups(of_pairs, shows_all, &text);
  AppendOthers(report.pairs, shows_all, &text);
  return absl::StrCat(text, LastLine(report, shows_all));
}

}  // namespace fsdprun::doctor
