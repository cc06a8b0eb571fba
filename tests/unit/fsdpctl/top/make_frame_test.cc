#include "fsdpctl/top/make_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <string>

#include "fsdpctl/top/screen_text.h"
#include "tests/unit/fsdpctl/top/shown_job.h"

namespace fsdprun::top {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// How wide a line is.
int WidthOf(const Line& line) {
  int columns = 0;
  for (const Span& span : line) {
    columns += ColumnsOf(span.text);
  }
  return columns;
}

std::string LineText(const Frame& frame, size_t row) {
  Frame one;
  one.lines = {frame.lines.at(row)};
  return PlainText(one);
}

Snapshot ShownSnapshot(int nodes, int per_node) {
  Snapshot snapshot;
  snapshot.status = ShownJob(nodes, per_node);
  v1::TimeLedger* const ledger = snapshot.status.mutable_ledger();
  ledger->set_wall_ns(10'800 * kSecondNs);
  ledger->set_goodput_ratio(0.971);
  v1::TimeLedger::Entry* const entry = ledger->add_entries();
  entry->set_bucket("productive");
  entry->set_ns(10'800 * kSecondNs);
  snapshot.events = {"06:00:01.000  node_joined  name=\"node0\"",
                     "06:00:02.000  world_formed  generation=2"};
  return snapshot;
}

class MakeFrameTest : public ::testing::Test {
 protected:
  MakeFrameTest() { std::setlocale(LC_CTYPE, "C.UTF-8"); }
  ~MakeFrameTest() override { std::setlocale(LC_CTYPE, "C"); }
};

TEST_F(MakeFrameTest, SixtyFourRanksOn80x24) {
  Snapshot snapshot = ShownSnapshot(2, 32);
  Hangs(5, &snapshot.status);
  snapshot.status.mutable_workers(5)->mutable_vitals()->set_state('T');
  SaysNothing(snapshot.status.mutable_workers(1));
  EXPECT_EQ("\n" + PlainText(MakeFrame(snapshot, {}, {24, 80})), R"(
fsdpctl top  run7  running: all workers run
HANG     rank 5 has been stopped (state T: SIGSTOP or job control; kill -CONT
         lets it go on) for 8.6 s in step 120 (2.0s ago)
TROUBLE  1 hanging
step     119 of 1000 (11.9 %), 1.0s ago, loss 2.5
world    generation 2, 64 ranks on 2 nodes of 1:4, restarts 1 of 3 (2 left)
speed    832ms a step, goodput 97.1 %
time     productive 100.0 % of 3h00m
memory   rss 444G, pss 128G, devices 2.5T (at most 60.0G on one), cpu 64.6
host     coordinator pid 4711 on node0 at node0:29400 for 3h00m (fsdprun 1.0)
event    06:00:02.000  world_formed  generation=2
RANK NODE      PID S  STEP   TIME COLL DATA    CPU   RSS DEVICE DOING
   0 node0    4000 R   120  800ms  25%   1%   101%  3.0G  40.0G waiting for data
   1 node0    4001 R     -      -    -    -   101%  3.1G      - computing
   2 node0    4002 R   120  802ms  25%   1%   101%  3.2G  40.0G waiting for data
   3 node0    4003 R   120  803ms  25%   1%   101%  3.4G  40.0G waiting for data
   4 node0    4004 R   120  804ms  25%   1%   101%  3.5G  40.0G waiting for data
   5 node0    4005 T   120  805ms  25%   1%   101%  3.6G  40.0G STOPPED (T)
   6 node0    4006 R   120  806ms  25%   1%   101%  3.8G  40.0G waiting for data
   7 node0    4007 R   120  807ms  25%   1%   101%  3.9G  40.0G waiting for data
   8 node0    4008 R   120  808ms  25%   1%   101%  4.0G  40.0G waiting for data
   9 node0    4009 R   120  809ms  25%   1%   101%  4.1G  40.0G waiting for data
  10 node0    4010 R   120  810ms  25%   1%   101%  4.2G  40.0G waiting for data
ranks 1-11 of 64, by rank  q:quit ?:help s:sort p:problems n:nodes e:events
)");
}

TEST_F(MakeFrameTest, AllColumnsOn200x50) {
  EXPECT_EQ("\n" + PlainText(MakeFrame(ShownSnapshot(2, 2), {.shows_events = true}, {50, 200})), R"(
fsdpctl top  run7  running: all workers run
step     119 of 1000 (11.9 %), 1.0s ago, 11m46s to go, loss 2.5
world    generation 2, 4 ranks on 2 nodes of 1:4, restarts 1 of 3 (2 left)
speed    12.3k tokens/s, 802ms a step, goodput 97.1 %
time     productive 100.0 % of 3h00m
memory   rss 12.8G, pss 8.0G, devices 160G (at most 60.0G on one), cpu 4.0
host     coordinator pid 4711 on node0 at node0:29400 for 3h00m (fsdprun 1.0)
event    06:00:02.000  world_formed  generation=2
RANK NODE      PID S  STEP   TIME COLL DATA    CPU   RSS   PSS DEVICE    LOSS  TOK/S  HEARD DOING
   0 node0    4000 R   120  800ms  25%   1%   101%  3.0G  2.0G  40.0G     2.5  12.3k  500ms waiting for data
   1 node0    4001 R   120  801ms  25%   1%   101%  3.1G  2.0G  40.0G     2.5  12.3k  500ms waiting for data
   2 node1    4002 R   120  802ms  25%   1%   101%  3.2G  2.0G  40.0G     2.5  12.3k  500ms waiting for data
   3 node1    4003 R   120  803ms  25%   1%   101%  3.4G  2.0G  40.0G     2.5  12.3k  500ms waiting for data




















EVENTS
06:00:01.000  node_joined  name="node0"
06:00:02.000  world_formed  generation=2













ranks 1-4 of 4, by rank  q:quit ?:help s:sort p:problems n:nodes e:events
)");
}

TEST_F(MakeFrameTest, TheMostImportantOn40x10) {
  Snapshot snapshot = ShownSnapshot(2, 2);
  Hangs(3, &snapshot.status);
  EXPECT_EQ("\n" + PlainText(MakeFrame(snapshot, {}, {10, 40})), R"(
fsdpctl top  run7  running: all workers~
HANG     rank 3 has been stopped (state
         T: SIGSTOP or job control; kill
         -CONT lets it go on) for 8.6 s~
step     119 of 1000 (11.9 %), 1.0s ago~
RANK NODE  S  STEP   TIME DOING
   0 node0 R   120  800ms waiting for d~
   1 node0 R   120  801ms waiting for d~
   2 node1 R   120  802ms waiting for d~
ranks 1-3 of 4, by rank  q:quit ?:help ~
)");
}

TEST_F(MakeFrameTest, NodesInThePlaceOfRanks) {
  EXPECT_EQ("\n" + PlainText(MakeFrame(ShownSnapshot(2, 2), {.shows_nodes = true}, {16, 80})), R"(
fsdpctl top  run7  running: all workers run
step     119 of 1000 (11.9 %), 1.0s ago, 11m46s to go, loss 2.5
world    generation 2, 4 ranks on 2 nodes of 1:4, restarts 1 of 3 (2 left)
speed    12.3k tokens/s, 802ms a step, goodput 97.1 %
time     productive 100.0 % of 3h00m
memory   rss 12.8G, pss 8.0G, devices 160G (at most 60.0G on one), cpu 4.0
host     coordinator pid 4711 on node0 at node0:29400 for 3h00m (fsdprun 1.0)
event    06:00:02.000  world_formed  generation=2
NODE  ADDRESS  RANKS    STEP   TIME    CPU MEMORY DEVICE TROUBLE STATE
node0 10.0.0.0   0-1     120  801ms   202%   4.0G  80.0G       - member
node1 10.0.0.1   2-3     120  803ms   202%   4.0G  80.0G       - member




nodes 1-2 of 2, by rank  q:quit ?:help s:sort p:problems n:nodes e:events
)");
}

TEST_F(MakeFrameTest, EachScreenIsFullAndNoLineIsTooWide) {
  Snapshot snapshot = ShownSnapshot(3, 5);
  Hangs(3, &snapshot.status);
  snapshot.trouble = "no answer";
  for (const View& view : {View{}, View{.shows_nodes = true, .shows_events = true},
                           View{.only_problems = true, .shows_events = true}}) {
    for (int rows = kRowsMin; rows < 60; ++rows) {
      for (int columns = kColumnsMin; columns < 200; columns += 17) {
        const Frame frame = MakeFrame(snapshot, view, {rows, columns});
        ASSERT_EQ(frame.lines.size(), static_cast<size_t>(rows)) << columns;
        for (const Line& line : frame.lines) {
          ASSERT_LE(WidthOf(line), columns) << rows;
        }
        ASSERT_GT(frame.page, 0) << rows;
      }
    }
  }
}

TEST_F(MakeFrameTest, SmallerScreensAreTold) {
  for (int rows = 1; rows < kRowsMin; ++rows) {
    for (int columns = 1; columns < 40; ++columns) {
      const Frame frame = MakeFrame(ShownSnapshot(1, 1), {}, {rows, columns});
      ASSERT_LE(frame.lines.size(), static_cast<size_t>(rows));
      for (const Line& line : frame.lines) {
        ASSERT_LE(WidthOf(line), columns);
      }
    }
  }
  EXPECT_THAT(PlainText(MakeFrame({}, {}, {3, 79})), StartsWith("too small: 79x3, needs 30x6"));
}

TEST_F(MakeFrameTest, TheTableScrollsAndTheHeaderStays) {
  const Snapshot snapshot = ShownSnapshot(2, 32);
  const Frame top = MakeFrame(snapshot, {}, {24, 80});
  const Frame end = MakeFrame(snapshot, {.first_row = 1 << 20}, {24, 80});
  EXPECT_EQ(end.rows, 64);
  EXPECT_EQ(end.view.first_row, 64 - end.page);
  EXPECT_EQ(LineText(end, 0), LineText(top, 0));
  EXPECT_THAT(LineText(end, 22), StartsWith("  63 node1"));
  EXPECT_THAT(LineText(end, 23), HasSubstr("-64 of 64"));
  const Frame few = MakeFrame(snapshot, {.only_problems = true, .first_row = 7}, {24, 80});
  EXPECT_EQ(few.view.first_row, 0);
  EXPECT_THAT(PlainText(few), HasSubstr("no worker has a problem"));
}

TEST_F(MakeFrameTest, RowsStayWhereTheyAreWhenThereIsLessToSay) {
  Snapshot snapshot = ShownSnapshot(2, 32);
  const Frame calm = MakeFrame(snapshot, {}, {24, 80});
  Hangs(5, &snapshot.status);
  const Frame trouble = MakeFrame(snapshot, calm.view, {24, 80});
  EXPECT_EQ(trouble.view.header_lines, calm.view.header_lines + 3);
  snapshot.status.clear_findings();
  const Frame after = MakeFrame(snapshot, trouble.view, {24, 80});
  EXPECT_EQ(after.view.header_lines, trouble.view.header_lines);
  EXPECT_EQ(after.page, trouble.page);
  const auto title = static_cast<size_t>(after.view.header_lines);
  EXPECT_THAT(LineText(after, title), StartsWith("RANK"));
  EXPECT_EQ(LineText(after, title - 1), "\n");
  const Frame small = MakeFrame(snapshot, trouble.view, {10, 80});
  EXPECT_EQ(small.view.header_lines, 5);  // However high it was.
  EXPECT_EQ(MakeFrame(snapshot, After(after.view, KeyOf('e'), 1), {24, 80}).lines.size(), 24U);
}

TEST_F(MakeFrameTest, TheEndStaysInSightWhateverIsSaidAbove) {
  Snapshot snapshot = ShownSnapshot(2, 32);
  const auto last_row = [](const Frame& frame) { return LineText(frame, 22); };
  Frame frame = MakeFrame(snapshot, After({}, Key::kEnd, 10), {24, 80});
  EXPECT_THAT(last_row(frame), StartsWith("  63 "));
  Hangs(5, &snapshot.status);
  frame = MakeFrame(snapshot, frame.view, {24, 80});
  EXPECT_THAT(last_row(frame), StartsWith("  63 "));
  frame = MakeFrame(snapshot, After(frame.view, Key::kUp, frame.page), {24, 80});
  EXPECT_THAT(last_row(frame), StartsWith("  62 "));
}

TEST_F(MakeFrameTest, AGoalIsFoundInRanksAndNodes) {
  const Snapshot snapshot = ShownSnapshot(40, 8);
  const auto sought = [&](const std::string& goal, bool in_nodes) {
    return MakeFrame(snapshot, {.shows_nodes = in_nodes, .goal = goal}, {24, 80}).view;
  };
  EXPECT_EQ(sought("77", false).first_row, 77);
  EXPECT_EQ(sought("77", false).found, 77);
  EXPECT_EQ(sought("77", false).goal, "");
  EXPECT_EQ(sought("77", true).first_row, 9);
  EXPECT_EQ(sought("77", true).found, 72);
  EXPECT_EQ(sought("node1", false).first_row, 8);  // node10 has it in its name, too.
  EXPECT_EQ(sought("de12", true).first_row, 12);
  EXPECT_EQ(sought("de12", true).found, 96);
  const View none = sought("999", false);
  EXPECT_EQ(none.note, "there is no rank or node 999");
  EXPECT_EQ(none.first_row, 0);
  EXPECT_EQ(none.found, -1);
  const Frame frame = MakeFrame(snapshot, sought("150", false), {24, 80});
  const auto found = std::find_if(frame.lines.begin(), frame.lines.end(), [](const Line& line) {
    return !line.empty() && line[0].style == Style::kFound;
  });
  ASSERT_NE(found, frame.lines.end());
  EXPECT_THAT((*found)[0].text, StartsWith(" 150 node18"));
  EXPECT_THAT(LineText(MakeFrame(snapshot, none, {24, 80}), 23), StartsWith("there is no rank"));
  EXPECT_THAT(LineText(MakeFrame(snapshot, {.is_typing = true, .typed = "7"}, {24, 80}), 23),
              StartsWith("/7_  "));
}

TEST_F(MakeFrameTest, WhatNobodyVouchesForIsFaint) {
  Snapshot snapshot = ShownSnapshot(1, 2);
  Hangs(1, &snapshot.status);
  snapshot.trouble = "no answer";
  const Frame frame = MakeFrame(snapshot, {}, {24, 80});
  const auto first = static_cast<size_t>(frame.view.header_lines) + 1;
  EXPECT_EQ(frame.lines.at(first)[0].style, Style::kFaint);
  EXPECT_EQ(frame.lines.at(first + 1)[0].style, Style::kFaint);
}

TEST_F(MakeFrameTest, HangsComeBeforeWhatIsSlow) {
  Snapshot snapshot = ShownSnapshot(1, 2);
  for (int i = 0; i < 3; ++i) {
    snapshot.status.add_findings()->set_kind("straggler");
  }
  Hangs(1, &snapshot.status);
  const std::string text = PlainText(MakeFrame(snapshot, {}, {0, 200}));
  EXPECT_THAT(text, HasSubstr("\nHANG     rank 1"));
  EXPECT_LT(text.find("HANG "), text.find("SLOW "));
  EXPECT_THAT(text, HasSubstr("and 1 more"));
}

TEST_F(MakeFrameTest, ALossThatIsNoNumberIsRed) {
  Snapshot snapshot = ShownSnapshot(1, 2);
  snapshot.status.mutable_workers(1)->mutable_vitals()->mutable_own()->set_has_bad_loss(true);
  const Frame frame = MakeFrame(snapshot, {}, {24, 80});
  EXPECT_THAT(LineText(frame, 1), HasSubstr(", loss nan"));
  EXPECT_EQ(frame.lines.at(1)[0].style, Style::kBad);
}

TEST_F(MakeFrameTest, TheEndIsTold) {
  Snapshot snapshot = ShownSnapshot(1, 1);
  snapshot.status.set_exit_code(7);
  EXPECT_THAT(PlainText(MakeFrame(snapshot, {}, {24, 80})),
              HasSubstr("\nEND      the job ends with exit code 7\n"));
  snapshot.status.set_phase("finished");
  EXPECT_THAT(PlainText(MakeFrame(snapshot, {}, {24, 80})),
              HasSubstr("\nEND      the job ended with exit code 7; q quits\n"));
}

TEST_F(MakeFrameTest, NoOtherProgramsTextSteersTheTerminal) {
  Snapshot snapshot = ShownSnapshot(1, 1);
  const std::string evil = "\x1b]0;x\x07\x1b[2J\xff\r\n";
  v1::JobStatus& status = snapshot.status;
  for (std::string* text :
       {status.mutable_job(), status.mutable_reason(), status.mutable_last_failure(),
        status.mutable_nodes(0)->mutable_name(), status.mutable_nodes(0)->mutable_address(),
        status.mutable_nodes(0)->mutable_state(), status.mutable_progress()->mutable_text(),
        status.mutable_coordinator()->mutable_node(), status.add_findings()->mutable_what(),
        status.mutable_workers(0)->mutable_vitals()->mutable_own()->mutable_phase()}) {
    *text = evil;
  }
  status.set_last_failure_age_ns(1);
  status.mutable_workers(0)->mutable_vitals()->set_state(0x1b);
  status.mutable_workers(0)->mutable_vitals()->mutable_own()->set_loss(NAN);
  snapshot.events = {evil};
  snapshot.trouble = evil;
  for (const View& view : {View{.shows_events = true}, View{.shows_nodes = true}}) {
    for (const int rows : {50, 0}) {
      const std::string text = PlainText(MakeFrame(snapshot, view, {rows, 100}));
      for (const char* bad : {"\x1b", "\x07", "\xff", "\r"}) {
        EXPECT_THAT(text, Not(HasSubstr(bad)));
      }
    }
  }
}

TEST_F(MakeFrameTest, AsTextItHasAllRowsAndNoKeys) {
  const std::string text = PlainText(MakeFrame(ShownSnapshot(2, 32), {}, {0, 160}));
  EXPECT_THAT(text, HasSubstr("\n  63 node1"));
  EXPECT_THAT(text, HasSubstr("world_formed"));
  EXPECT_THAT(text, Not(HasSubstr("q:quit")));
  EXPECT_THAT(WorkersText(ShownJob(1, 2), 160), StartsWith("RANK NODE "));
}

TEST_F(MakeFrameTest, HelpNamesTheKeys) {
  const std::string text =
      PlainText(MakeFrame(ShownSnapshot(1, 1), {.shows_help = true}, {24, 80}));
  EXPECT_THAT(text, HasSubstr("reverse the order"));
  const Frame begin = MakeFrame({}, {.shows_help = true}, {8, 40});
  EXPECT_EQ(begin.lines.size(), 8U);
  EXPECT_THAT(LineText(begin, 1), StartsWith("Up Down"));
  const Frame end = MakeFrame({}, {.shows_help = true, .help_row = 1000}, {8, 40});
  EXPECT_EQ(end.lines.size(), 8U);
  EXPECT_THAT(LineText(end, 7), HasSubstr("unless it writes"));
  EXPECT_LT(end.view.help_row, 1000);
}

TEST_F(MakeFrameTest, ThereIsARowForEachOfManyRanks) {
  EXPECT_EQ(MakeFrame(ShownSnapshot(512, 8), {.sort = SortKey::kStepTime}, {24, 80}).rows, 4096);
}

}  // namespace
}  // namespace fsdprun::top
