#include "fsdpctl/top/rank_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>

#include "fsdpctl/top/node_table.h"
#include "fsdpctl/top/rank_table.h"
#include "fsdpctl/top/totals.h"
#include "tests/unit/fsdpctl/top/shown_job.h"

namespace fsdprun::top {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<int> RanksOf(const std::vector<RankRow>& rows) {
  std::vector<int> ranks;
  std::transform(rows.begin(), rows.end(), std::back_inserter(ranks),
                 [](const RankRow& row) { return row.rank; });
  return ranks;
}

std::vector<Trouble> TroublesOf(const v1::JobStatus& status) {
  std::vector<Trouble> troubles;
  for (const RankRow& row : RowsOf(status)) {
    troubles.push_back(row.trouble);
  }
  return troubles;
}

v1::OwnVitals* OwnOf(int rank, v1::JobStatus* status) {
  return status->mutable_workers(rank)->mutable_vitals()->mutable_own();
}

TEST(RankRowsTest, AllRanksHaveARowEvenIfNothingIsKnownOfThem) {
  v1::JobStatus status = ShownJob(2, 2);
  std::swap(*status.mutable_nodes(0), *status.mutable_nodes(1));
  status.clear_workers();
  v1::NodeStatus* const spare = status.add_nodes();
  spare->set_first_rank(-1);
  spare->set_workers(8);
  const std::vector<RankRow> rows = RowsOf(status);
  EXPECT_THAT(RanksOf(rows), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(rows[3].node, "node1");
  EXPECT_EQ(RankCells(rows[3]), (Cells{"3", "node1", "-", "-", "-", "-", "-", "-", "-", "-", "-",
                                       "-", "-", "-", "-", "-"}));
}

TEST(RankRowsTest, WorkersThatRunWellHaveNoTrouble) {
  EXPECT_THAT(TroublesOf(ShownJob(2, 2)), Each(Trouble::kNone));
}

TEST(RankRowsTest, EachTroubleIsSeen) {
  v1::JobStatus status = ShownJob(2, 4);
  Hangs(0, &status);
  status.mutable_workers(1)->mutable_vitals()->set_state('T');
  status.mutable_workers(2)->set_vitals_age_ns(6 * kSecondNs);
  status.mutable_workers(3)->clear_vitals();
  v1::Finding* const slow = status.add_findings();
  slow->set_kind("straggler");
  slow->add_ranks(4);
  OwnOf(5, &status)->set_step(117);
  OwnOf(6, &status)->set_step(118);  // As happens between two steps.
  OwnOf(7, &status)->set_step(-1);
  EXPECT_THAT(TroublesOf(status),
              ElementsAre(Trouble::kHang, Trouble::kStopped, Trouble::kSilent, Trouble::kSilent,
                          Trouble::kSlow, Trouble::kBehind, Trouble::kNone, Trouble::kNone));
  const std::vector<RankRow> left = Arranged(RowsOf(status), {.only_problems = true});
  EXPECT_THAT(RanksOf(left), ElementsAre(0, 1, 2, 3, 4, 5));
  const Totals totals = TotalsOf(status, RowsOf(status));
  EXPECT_EQ(
      std::vector({totals.hanging, totals.stopped, totals.silent, totals.slow, totals.behind}),
      (std::vector{1, 1, 2, 1, 1}));
}

/// Two nodes in the same step all the time, which are looked at 0.9 s one after the other.
v1::JobStatus LookedAtLater(int64_t step_ns, int64_t lag) {
  v1::JobStatus status = ShownJob(2, 2);
  for (v1::WorkerStatus& worker : *status.mutable_workers()) {
    worker.mutable_vitals()->mutable_own()->set_step_ns(step_ns);
  }
  for (const int rank : {2, 3}) {
    OwnOf(rank, &status)->set_step(120 - lag);
    status.mutable_workers(rank)->set_vitals_age_ns(kSecondNs / 2 + 900'000'000);
  }
  return status;
}

TEST(RankRowsTest, WhoWasLookedAtEarlierIsNotBehind) {
  EXPECT_THAT(TroublesOf(LookedAtLater(100'000'000, 9)), Each(Trouble::kNone));
  EXPECT_THAT(TroublesOf(LookedAtLater(100'000'000, 12)), Each(Trouble::kNone));
  EXPECT_THAT(TroublesOf(LookedAtLater(100'000'000, 14)),
              ElementsAre(Trouble::kNone, Trouble::kNone, Trouble::kBehind, Trouble::kBehind));
  EXPECT_THAT(TroublesOf(LookedAtLater(800'000'000, 2)), Each(Trouble::kNone));
  EXPECT_THAT(TroublesOf(LookedAtLater(0, 500)), Each(Trouble::kNone));  // Nobody knows.
}

TEST(RankRowsTest, WhoWasLookedAtLaterIsBehindAllTheSame) {
  v1::JobStatus status = LookedAtLater(100'000'000, 6);
  for (const int rank : {2, 3}) {
    status.mutable_workers(rank)->set_vitals_age_ns(0);
  }
  EXPECT_THAT(TroublesOf(status),
              ElementsAre(Trouble::kNone, Trouble::kNone, Trouble::kBehind, Trouble::kBehind));
}

TEST(RankRowsTest, AWorldThatHasJustBegunIsNotSilent) {
  v1::JobStatus status = ShownJob(1, 2);
  for (v1::WorkerStatus& worker : *status.mutable_workers()) {
    worker.clear_vitals();
  }
  const auto trouble = [&](const Sight& sight) { return RowsOf(status, sight)[0].trouble; };
  EXPECT_EQ(trouble({.running_ns = 4 * kSecondNs}), Trouble::kNone);
  EXPECT_EQ(trouble({.running_ns = 6 * kSecondNs}), Trouble::kSilent);
  EXPECT_EQ(trouble({}), Trouble::kSilent);
  status.set_age_ns(kSecondNs);  // Of a coordinator that has just taken over.
  EXPECT_EQ(trouble({}), Trouble::kNone);
}

TEST(RankRowsTest, WhoseCoordinatorIsSilentIsNot) {
  v1::JobStatus status = ShownJob(1, 1);
  status.mutable_workers(0)->set_vitals_age_ns(60 * kSecondNs);
  EXPECT_EQ(RowsOf(status, {.told_ns = 59 * kSecondNs})[0].trouble, Trouble::kNone);
  EXPECT_EQ(RowsOf(status, {.told_ns = 50 * kSecondNs})[0].trouble, Trouble::kSilent);
}

TEST(RankRowsTest, WhatIsOldSaysHowOldItIs) {
  v1::JobStatus status = ShownJob(1, 1);
  status.mutable_workers(0)->mutable_vitals()->set_state('T');
  EXPECT_EQ(DoingOf(RowsOf(status)[0]), "STOPPED (T)");
  status.mutable_workers(0)->set_vitals_age_ns(200 * kSecondNs);
  EXPECT_EQ(DoingOf(RowsOf(status)[0]), "3m20s ago: STOPPED (T)");
}

TEST(RankRowsTest, ALossThatIsNoNumberIsSeen) {
  v1::JobStatus status = ShownJob(1, 3);
  OwnOf(0, &status)->set_loss(NAN);
  OwnOf(1, &status)->set_loss(NAN);
  OwnOf(1, &status)->set_has_bad_loss(true);
  const std::vector<RankRow> rows = RowsOf(status);
  EXPECT_EQ(RankCells(rows[0])[12], "-");
  EXPECT_EQ(RankCells(rows[1])[12], "nan");
  EXPECT_EQ(StyleOf(rows[1]), Style::kBad);
  EXPECT_TRUE(TotalsOf(status, rows).has_bad_loss);
}

TEST(RankRowsTest, WhoHasEndedOrIsBeingStoppedOwesNothing) {
  v1::JobStatus status = ShownJob(1, 2);
  status.mutable_workers(0)->set_has_ended(true);
  status.mutable_workers(0)->set_vitals_age_ns(600 * kSecondNs);
  EXPECT_THAT(TroublesOf(status), Each(Trouble::kNone));
  EXPECT_EQ(DoingOf(RowsOf(status)[0]), "ended");
  EXPECT_EQ(RankCells(RowsOf(status)[0])[2], "-");
  status.mutable_workers(1)->set_vitals_age_ns(600 * kSecondNs);
  EXPECT_THAT(TroublesOf(status), ElementsAre(Trouble::kNone, Trouble::kSilent));
  status.set_phase("stopping");
  EXPECT_THAT(TroublesOf(status), Each(Trouble::kNone));
}

TEST(RankRowsTest, SortedByWhatIsWanted) {
  v1::JobStatus status = ShownJob(1, 4);
  OwnOf(2, &status)->set_step(119);
  status.mutable_workers(1)->set_cpus(3.5);
  SaysNothing(status.mutable_workers(3));
  const auto sorted = [&](SortKey key, bool reversed) {
    return RanksOf(Arranged(RowsOf(status), {.sort = key, .is_reversed = reversed}));
  };
  EXPECT_THAT(sorted(SortKey::kRank, false), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sorted(SortKey::kRank, true), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(sorted(SortKey::kStep, false), ElementsAre(2, 0, 1, 3));
  EXPECT_THAT(sorted(SortKey::kStep, true),
              ElementsAre(0, 1, 2, 3));  // What is unknown stays last.
  EXPECT_THAT(sorted(SortKey::kStepTime, false), ElementsAre(2, 1, 0, 3));
  EXPECT_THAT(sorted(SortKey::kCpu, false), ElementsAre(1, 0, 2, 3));
  EXPECT_THAT(sorted(SortKey::kMemory, false), ElementsAre(3, 2, 1, 0));
}

TEST(RankRowsTest, WhatAWorkerDoes) {
  v1::JobStatus status = ShownJob(1, 1);
  const auto doing = [&] { return DoingOf(RowsOf(status)[0]); };
  EXPECT_EQ(doing(), "waiting for data");
  OwnOf(0, &status)->set_collectives_begun(7);
  OwnOf(0, &status)->set_collectives_ended(6);
  OwnOf(0, &status)->set_collective("all_gather");
  OwnOf(0, &status)->set_unit("layers.3\x1b[2J");
  EXPECT_EQ(doing(), "in all_gather of layers.3 [2J");
  OwnOf(0, &status)->set_collective_age_ns(4 * kSecondNs);
  EXPECT_EQ(doing(), "in all_gather of layers.3 [2J for 4.0s");
  status.mutable_workers(0)->mutable_vitals()->set_state('t');
  EXPECT_EQ(doing(), "TRACED, by a debugger (t)");
  status.mutable_workers(0)->mutable_vitals()->set_state('S');
  SaysNothing(status.mutable_workers(0));
  EXPECT_EQ(doing(), "asleep");
  EXPECT_THAT(RankCells(RowsOf(status)[0]),
              ElementsAre("0", "node0", "4000", "S", "-", "-", "-", "-", "101%", "3.0G", "2.0G",
                          "-", "-", "-", "500ms", "asleep"));
}

TEST(NodeRowsTest, WorkersOfANodeAreAddedUp) {
  v1::JobStatus status = ShownJob(2, 2);
  OwnOf(3, &status)->set_step(117);
  status.mutable_nodes(1)->set_suspect(true);
  v1::NodeStatus* const spare = status.add_nodes();
  spare->set_name("extra");
  spare->set_state("spare");
  spare->set_connected(true);
  spare->set_first_rank(-1);
  const std::vector<RankRow> ranks = RowsOf(status);
  const std::vector<NodeRow> rows = NodeRows(status, ranks, {});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_THAT(rows[0].cells, ElementsAre("node0", "10.0.0.0", "0-1", "120", "801ms", "202%", "4.0G",
                                         "80.0G", "-", "200ms", "member"));
  EXPECT_THAT(rows[1].cells, ElementsAre("node1", "10.0.0.1", "2-3", "117", "803ms", "202%", "4.0G",
                                         "80.0G", "1", "200ms", "member, silent"));
  EXPECT_THAT(rows[2].cells,
              ElementsAre("extra", "", "-", "-", "-", "-", "-", "-", "-", "0ms", "spare"));
  EXPECT_EQ(rows[0].style, Style::kPlain);
  EXPECT_EQ(rows[1].style, Style::kWarning);
  EXPECT_EQ(NodeRows(status, ranks, {.only_problems = true}).size(), 1U);
}

TEST(NodeRowsTest, SortedAsRanksAre) {
  v1::JobStatus status = ShownJob(3, 2);
  status.mutable_nodes(0)->set_first_rank(-1);  // Of which nothing is known.
  OwnOf(2, &status)->set_step(119);
  status.mutable_workers(4)->set_cpus(3.5);
  const std::vector<RankRow> ranks = RowsOf(status);
  const auto sorted = [&](SortKey key, bool reversed) {
    std::vector<std::string> names;
    for (const NodeRow& row : NodeRows(status, ranks, {.sort = key, .is_reversed = reversed})) {
      names.push_back(row.node->name());
    }
    return names;
  };
  EXPECT_THAT(sorted(SortKey::kRank, false), ElementsAre("node1", "node2", "node0"));
  EXPECT_THAT(sorted(SortKey::kRank, true), ElementsAre("node2", "node1", "node0"));
  EXPECT_THAT(sorted(SortKey::kStep, false), ElementsAre("node1", "node2", "node0"));
  EXPECT_THAT(sorted(SortKey::kStepTime, false), ElementsAre("node2", "node1", "node0"));
  EXPECT_THAT(sorted(SortKey::kCpu, false), ElementsAre("node2", "node1", "node0"));
  EXPECT_THAT(sorted(SortKey::kMemory, true), ElementsAre("node1", "node2", "node0"));
  EXPECT_TRUE(NodeColumns(status, SortKey::kCpu)[5].is_sorted_by);
}

TEST(TotalsTest, FindingsCountTheRanksThatTheyDoNotName) {
  v1::JobStatus status = ShownJob(1, 4);
  Hangs(1, &status);
  status.mutable_findings(0)->set_rank_count(64);
  EXPECT_EQ(TotalsOf(status, RowsOf(status)).hanging, 64);
  status.mutable_findings(0)->set_rank_count(0);  // From an older coordinator.
  EXPECT_EQ(TotalsOf(status, RowsOf(status)).hanging, 1);
}

TEST(TotalsTest, TheRestIsByStepsSeenElseByOne) {
  v1::JobStatus status = ShownJob(1, 4);
  const Totals totals = TotalsOf(status, RowsOf(status));
  EXPECT_EQ(totals.step, 119);
  EXPECT_EQ(totals.total, 1000);
  EXPECT_EQ(totals.median_step_ns, 802'000'000);
  EXPECT_EQ(totals.tokens_per_second, 12345);
  EXPECT_EQ(totals.device_peak, 60 * kGiB);
  EXPECT_EQ(RestNs(totals, 2.0), 881 * kSecondNs / 2);
  EXPECT_EQ(RestNs(totals, std::nullopt), 881 * int64_t{802'000'000});
  EXPECT_EQ(RestNs(Totals{}, 2.0), std::nullopt);
  EXPECT_EQ(RestNs(Totals{.step = 1, .total = 5}, std::nullopt), std::nullopt);
  EXPECT_EQ(RestNs(Totals{.step = 1, .total = INT64_MAX}, 1e-9), std::nullopt);
}

}  // namespace
}  // namespace fsdprun::top
