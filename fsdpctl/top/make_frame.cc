#include "fsdpctl/top/make_frame.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "fsdpctl/top/header.h"
#include "fsdpctl/top/node_table.h"
#include "fsdpctl/top/rank_table.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

/// Of a screen: so much is for the table whatever there is above it.
constexpr int kRowsOfTableMin = 3;
constexpr int kEventsPart = 3;

constexpr const char* kHelp[] = {
    "Up Down k j       scroll by a row",
    "PgUp PgDn b Space scroll by a screen",
    "Home End g G      to the first, the last row",
    "s                 sort by rank, step, step time, cpu, memory",
    "r                 reverse the order",
    "p                 only workers with problems, or all",
    "n                 nodes, or workers",
    "e                 the latest events, or not",
    "? h               this help; any key leaves it",
    "q Ctrl-C          quit; Ctrl-Z suspends",
    "",
    "S      R computes, S asleep, D in the kernel, T stopped, t traced, Z dead",
    "TIME   of the latest step; COLL, DATA: part of it in which the worker",
    "       waited in collectives, for data",
    "CPU    100% is one processor; RSS, PSS, DEVICE: memory",
    "HEARD  how long ago its node has told of it",
    "-      nobody has said so: a program in Python says nothing of itself",
    "       unless it writes its page (docs/VITALS.md)",
};

struct Table {
  std::vector<Column> columns;
  std::vector<Line> rows;
  /// How many there are; those in `rows` begin with the first that is shown.
  int count = 0;
  int first = 0;
  const char* why_empty = "";
};

/// Which rows are shown: the first is not beyond the end.
int Clamped(int first, int count, int page) {
  return std::clamp(first, 0, std::max(0, count - page));
}

/// `page`: rows at most; -1: all.
Table RankTable(const std::vector<RankRow>& ranks, const View& view, int page, int columns) {
  Table table;
  table.columns = RankColumns(ranks, view.sort);
  const std::vector<RankRow> shown = Arranged(ranks, view);
  table.count = static_cast<int>(shown.size());
  page = page < 0 ? table.count : page;
  table.first = Clamped(view.first_row, table.count, page);
  const std::vector<size_t> chosen = ColumnsWithRoom(table.columns, columns);
  for (int i = table.first; i < std::min(table.count, table.first + page); ++i) {
    const RankRow& row = shown[static_cast<size_t>(i)];
    table.rows.push_back(RowLine(table.columns, chosen, RankCells(row), StyleOf(row), columns));
  }
  table.why_empty = ranks.empty() ? "no workers" : "no worker has a problem";
  return table;
}

Table NodeTableOf(const v1::JobStatus& status, const std::vector<RankRow>& ranks, const View& view,
                  int page, int columns) {
  Table table;
  table.columns = NodeColumns(status);
  const std::vector<NodeRow> shown = NodeRows(status, ranks, view);
  table.count = static_cast<int>(shown.size());
  page = page < 0 ? table.count : page;
  table.first = Clamped(view.first_row, table.count, page);
  const std::vector<size_t> chosen = ColumnsWithRoom(table.columns, columns);
  for (int i = table.first; i < std::min(table.count, table.first + page); ++i) {
    const NodeRow& row = shown[static_cast<size_t>(i)];
    table.rows.push_back(RowLine(table.columns, chosen, row.cells, row.style, columns));
  }
  table.why_empty = status.nodes().empty() ? "no nodes" : "no node has a problem";
  return table;
}

std::string RowsText(const Frame& frame, bool shows_nodes) {
  const char* what = shows_nodes ? "nodes" : "ranks";
  const int last = std::min(frame.rows, frame.first_row + frame.page);
  return frame.rows == 0
             ? absl::StrCat("no ", what)
             : absl::StrCat(what, " ", frame.first_row + 1, "-", last, " of ", frame.rows);
}

/// What is shown at the left, the keys behind it.
Line Footer(const Frame& frame, const View& view, int columns) {
  const std::string order = view.shows_nodes ? ""
                                             : absl::StrCat(", by ", NameOf(view.sort),
                                                            view.is_reversed ? ", reversed" : "");
  const std::string filter = view.only_problems ? ", problems only" : "";
  return {{Style::kTitle, Fit(absl::StrCat(RowsText(frame, view.shows_nodes), order, filter,
                                           "  q:quit ?:help s:sort p:problems n:nodes e:events"),
                              columns)}};
}

/// The latest, as many as there is room for.
void AddEvents(const std::vector<std::string>& events, int lines, int columns, Frame* frame) {
  frame->lines.push_back({{Style::kTitle, Fit("EVENTS", columns)}});
  const size_t shown = std::min(events.size(), static_cast<size_t>(std::max(0, lines - 1)));
  for (size_t i = events.size() - shown; i < events.size(); ++i) {
    frame->lines.push_back({{Style::kPlain, Fit(ScreenText(events[i]), columns)}});
  }
}

Frame TooSmall(const Size& size) {
  const std::string what = absl::StrCat("too small: ", size.columns, "x", size.rows, ", needs ",
                                        kColumnsMin, "x", kRowsMin);
  Frame frame;
  for (const std::string& line : Wrap(what, size.columns, size.rows)) {
    frame.lines.push_back({{Style::kPlain, line}});
  }
  return frame;
}

Frame HelpFrame(const Size& size) {
  Frame frame;
  frame.lines.push_back({{Style::kTitle, Fit("fsdpctl top: keys", size.columns)}});
  for (const char* line : kHelp) {
    if (size.rows == 0 || static_cast<int>(frame.lines.size()) < size.rows) {
      frame.lines.push_back({{Style::kPlain, Fit(line, size.columns)}});
    }
  }
  return frame;
}

/// The titles and the rows.
void AddTable(const Table& table, int columns, Frame* frame) {
  frame->lines.push_back(
      TitleLine(table.columns, ColumnsWithRoom(table.columns, columns), columns));
  if (table.count == 0) {
    frame->lines.push_back({{Style::kFaint, Fit(table.why_empty, columns)}});
  }
  frame->lines.insert(frame->lines.end(), table.rows.begin(), table.rows.end());
  frame->rows = table.count;
  frame->first_row = table.first;
}

}  // namespace

Frame MakeFrame(const Snapshot& snapshot, const View& view, const Size& size) {
  const bool is_endless = size.rows == 0;
  if (!is_endless && (size.rows < kRowsMin || size.columns < kColumnsMin)) {
    return TooSmall(size);
  }
  if (view.shows_help) {
    return HelpFrame(size);
  }
  static const v1::JobStatus kNoStatus;
  const v1::JobStatus& status = snapshot.status.has_value() ? *snapshot.status : kNoStatus;
  const std::vector<RankRow> ranks = RowsOf(status);
  const int events = view.shows_events ? std::max(2, size.rows / kEventsPart) : 0;
  // Titles of the table, and the footer, have a line each.
  const int header_max = is_endless ? 1000 : size.rows - 2 - events - kRowsOfTableMin;
  Frame frame;
  frame.lines = HeaderLines(snapshot, ranks,
                            std::min(header_max, is_endless ? 1000 : size.rows / 2), size.columns);
  const int page =
      is_endless ? -1 : std::max(0, size.rows - 2 - events - static_cast<int>(frame.lines.size()));
  AddTable(view.shows_nodes ? NodeTableOf(status, ranks, view, page, size.columns)
                            : RankTable(ranks, view, page, size.columns),
           size.columns, &frame);
  frame.page = is_endless ? frame.rows : page;
  if (is_endless) {
    return frame;
  }
  const auto table_end = static_cast<size_t>(size.rows - 1 - events);
  frame.lines.resize(table_end);
  if (events > 0) {
    AddEvents(snapshot.events, events, size.columns, &frame);
    frame.lines.resize(static_cast<size_t>(size.rows - 1));
  }
  frame.lines.push_back(Footer(frame, view, size.columns));
  return frame;
}

std::string PlainText(const Frame& frame) {
  std::string text;
  for (const Line& line : frame.lines) {
    std::string row;
    for (const Span& span : line) {
      row += span.text;
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(row), "\n");
  }
  return text;
}

std::string WorkersText(const v1::JobStatus& status, int columns) {
  Frame frame;
  AddTable(RankTable(RowsOf(status), View{}, -1, columns), columns, &frame);
  return PlainText(frame);
}

}  // namespace fsdprun::top
