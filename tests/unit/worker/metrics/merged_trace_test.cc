#include "worker/metrics/merged_trace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

/// Of a rank whose clock shows `clock` when that of the first shows 0.
Json Timeline(int64_t rank, double clock) {
  return {{"otherData", {{"rank", rank}}},
          {"traceEvents",
           {{{"ph", "M"}, {"name", "process_name"}, {"pid", rank}},
            {{"ph", "X"}, {"name", "clocks"}, {"pid", rank}, {"ts", clock + 90}, {"dur", 10}},
            {{"ph", "X"}, {"name", "step 3"}, {"pid", rank}, {"ts", clock + 105}, {"dur", 5}},
            {{"ph", "b"}, {"name", "all_gather"}, {"pid", rank}, {"ts", clock + 106}, {"id", 7}},
            {{"ph", "e"}, {"name", "all_gather"}, {"pid", rank}, {"ts", clock + 107}, {"id", 7}}}}};
}

std::vector<Json> EventsNamed(const Json& trace, const std::string& name) {
  std::vector<Json> events;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == name) {
      events.push_back(event);
    }
  }
  return events;
}

TEST(MergedTraceTest, TimelineWithoutTheMarkIsRefusedByItsRank) {
  Json other = Timeline(1, 0);
  other["traceEvents"].erase(1);
  try {
    MergeTraces({Timeline(0, 0), other});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 16), "trace of rank 1:");
  }
}

TEST(MergedTraceTest, ClocksAreSetByTheMark) {
  const Json trace = MergeTraces({Timeline(0, 1e15), Timeline(1, 2e15), Timeline(2, 5e14)});
  EXPECT_EQ(trace.at("otherData").at("ranks"), 3);
  const std::vector<Json> steps = EventsNamed(trace, "step 3");
  ASSERT_EQ(steps.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_DOUBLE_EQ(steps[rank].at("ts").get<double>(), 15);
    EXPECT_EQ(steps[rank].at("pid"), rank);
  }
}

TEST(MergedTraceTest, PairsOfOneRankDoNotMeetThoseOfAnother) {
  const Json trace = MergeTraces({Timeline(0, 0), Timeline(1, 0)});
  const std::vector<Json> gathers = EventsNamed(trace, "all_gather");
  ASSERT_EQ(gathers.size(), 4u);
  EXPECT_EQ(gathers[0].at("id"), gathers[1].at("id"));
  EXPECT_EQ(gathers[2].at("id"), gathers[3].at("id"));
  EXPECT_NE(gathers[0].at("id"), gathers[2].at("id"));
}

TEST(MergedTraceTest, RanksStandInTheirOrder) {
  const std::vector<Json> places =
      EventsNamed(MergeTraces({Timeline(0, 0), Timeline(1, 0)}), "process_sort_index");
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[1].at("args").at("sort_index"), 1);
}

}  // namespace
}  // namespace fsdprun::worker
