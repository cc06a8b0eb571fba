#include "fsdpctl/top/make_frame.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "fsdpctl/top/header.h"
#include "fsdpctl/top/help.h"
#include "fsdpctl/top/job_table.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun::top {
namespace {

/// Of a screen: so much is for the table whatever there is above it.
constexpr int kRowsOfTableMin = 3;
constexpr int kEventsPart = 3;
constexpr int kEndless = 1000;

std::string RowsText(const Frame& frame) {
  const char* what = frame.view.shows_nodes ? "nodes" : "ranks";
  const int last = std::min(frame.rows, frame.view.first_row + frame.page);
  return frame.rows == 0
             ? absl::StrCat("no ", what)
             : absl::StrCat(what, " ", frame.view.first_row + 1, "-", last, " of ", frame.rows);
}

/// What is shown at the left, the keys behind it; or what is being typed.
Line Footer(const Frame& frame, int columns) {
  const View& view = frame.view;
  if (view.is_typing) {
    return {
        {Style::kTitle,
         Fit(absl::StrCat("/", view.typed, "_  a rank or a node; Enter:go Esc:leave"), columns)}};
  }
  if (!view.note.empty()) {
    return {{Style::kWarning, Fit(view.note, columns)}};
  }
  return {{Style::kTitle, Fit(absl::StrCat(RowsText(frame), ", by ", NameOf(view.sort),
                                           view.is_reversed ? ", reversed" : "",
                                           view.only_problems ? ", problems only" : "",
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

Frame TooSmall(const View& view, const Size& size) {
  const std::string what = absl::StrCat("too small: ", size.columns, "x", size.rows, ", needs ",
                                        kColumnsMin, "x", kRowsMin);
  Frame frame;
  frame.view = view;
  for (const std::string& line : Wrap(what, size.columns, size.rows)) {
    frame.lines.push_back({{Style::kPlain, line}});
  }
  return frame;
}

/// The titles and the rows.
void AddTable(const JobTable& table, int columns, Frame* frame) {
  frame->lines.push_back(
      TitleLine(table.columns, ColumnsWithRoom(table.columns, columns), columns));
  if (table.count == 0) {
    frame->lines.push_back({{Style::kFaint, Fit(table.why_empty, columns)}});
  }
  frame->lines.insert(frame->lines.end(), table.rows.begin(), table.rows.end());
  frame->rows = table.count;
  frame->view = table.view;
}

/// All that there is, for no screen.
Frame EndlessFrame(const Snapshot& snapshot, const View& view, int columns) {
  const std::vector<RankRow> ranks = RowsOf(snapshot.status, snapshot.sight);
  Frame frame;
  frame.lines = HeaderLines(snapshot, ranks, kEndless, columns);
  AddTable(TableOf(snapshot, ranks, view, -1, columns), columns, &frame);
  frame.page = frame.rows;
  return frame;
}

}  // namespace

Frame MakeFrame(const Snapshot& snapshot, const View& view, const Size& size) {
  if (size.rows == 0) {
    return EndlessFrame(snapshot, view, size.columns);
  }
  if (size.rows < kRowsMin || size.columns < kColumnsMin) {
    return TooSmall(view, size);
  }
  if (view.shows_help) {
    return HelpFrame(view, size);
  }
  const std::vector<RankRow> ranks = RowsOf(snapshot.status, snapshot.sight);
  const int events = view.shows_events ? std::max(2, size.rows / kEventsPart) : 0;
  // Titles of the table, and the footer, have a line each.
  const int header_max = std::min(size.rows - 2 - events - kRowsOfTableMin, size.rows / 2);
  Frame frame;
  frame.lines = HeaderLines(snapshot, ranks, header_max, size.columns);
  const int header =
      std::max(static_cast<int>(frame.lines.size()), std::min(view.header_lines, header_max));
  frame.lines.resize(static_cast<size_t>(header));
  const int page = std::max(0, size.rows - 2 - events - header);
  AddTable(TableOf(snapshot, ranks, view, page, size.columns), size.columns, &frame);
  frame.page = page;
  frame.view.header_lines = header;
  frame.lines.resize(static_cast<size_t>(size.rows - 1 - events));
  if (events > 0) {
    AddEvents(snapshot.events, events, size.columns, &frame);
    frame.lines.resize(static_cast<size_t>(size.rows - 1));
  }
  frame.lines.push_back(Footer(frame, size.columns));
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
  Snapshot snapshot;
  snapshot.status = status;
  Frame frame;
  AddTable(TableOf(snapshot, RowsOf(status), View{}, -1, columns), columns, &frame);
  return PlainText(frame);
}

}  // namespace fsdprun::top
