#include "worker/metrics/merged_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
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

class MergedTraceTest : public testing::Test {
 protected:
  MergedTraceTest() { std::filesystem::create_directories(folder_); }
  ~MergedTraceTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path Write(const std::string& content) {
    const std::filesystem::path path = folder_ / std::to_string(++files_);
    std::ofstream(path) << content;
    return path;
  }
  Json Merge(const std::vector<Json>& timelines) {
    std::vector<std::filesystem::path> paths;
    for (const Json& timeline : timelines) {
      paths.push_back(Write(timeline.dump()));
    }
    std::ostringstream out;
    MergeTraces(paths, out);
    return Json::parse(out.str());
  }
  std::string ErrorOf(const std::vector<std::filesystem::path>& paths) {
    std::ostringstream out;
    try {
      MergeTraces(paths, out);
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  }

  const std::filesystem::path folder_ =
      testing::TempDir() + "merged_trace_" + std::to_string(getpid());
  int files_ = 0;
};

TEST_F(MergedTraceTest, NothingIsBeforeTheBeginningWhateverClocksShow) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) {
    // Microseconds since 1970, of which a double has quarters.
    const double clock = 1.796e15 + static_cast<double>(random() % 1000) / 4;
    Json first = Timeline(0, clock);
    for (Json& event : first["traceEvents"]) {
      if (event.contains("ts")) {
        event["ts"] = event["ts"].get<double>() + static_cast<double>(random() % 8) / 8;
      }
    }
    double least = 1;
    const Json merged = Merge({first, Timeline(1, clock / 3 + 0.125)});
    for (const Json& event : merged.at("traceEvents")) {
      least = std::min(least, event.value("ts", least));
    }
    EXPECT_EQ(least, 0) << clock;
  }
}

TEST_F(MergedTraceTest, TimelineWithoutTheMarkIsRefusedByItsRank) {
  Json other = Timeline(1, 0);
  other["traceEvents"].erase(1);
  EXPECT_EQ(ErrorOf({Write(Timeline(0, 0).dump()), Write(other.dump())}).substr(0, 16),
            "trace of rank 1:");
}

TEST_F(MergedTraceTest, FileThatIsNoTimelineIsNamed) {
  const std::string whole = Timeline(0, 0).dump();
  for (const std::string& content :
       {std::string(), std::string("[]"), std::string("{}"),
        std::string(R"({"traceEvents": [{}]})"),
        std::string(R"({"otherData": {"rank": "x"}, "traceEvents": []})"),
        whole.substr(0, whole.size() / 2)}) {
    const std::filesystem::path path = Write(content);
    EXPECT_NE(ErrorOf({path}).find("trace " + path.string() + ": "), std::string::npos)
        << content << ": " << ErrorOf({path});
  }
  EXPECT_NE(ErrorOf({folder_ / "none"}).find("cannot be read"), std::string::npos);
}

TEST_F(MergedTraceTest, ClocksAreSetByTheMark) {
  const Json trace = Merge({Timeline(0, 1e15), Timeline(1, 2e15), Timeline(2, 5e14)});
  EXPECT_EQ(trace.at("otherData").at("ranks"), 3);
  const std::vector<Json> steps = EventsNamed(trace, "step 3");
  ASSERT_EQ(steps.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_DOUBLE_EQ(steps[rank].at("ts").get<double>(), 15);
    EXPECT_EQ(steps[rank].at("pid"), rank);
  }
}

TEST_F(MergedTraceTest, PairsOfOneRankDoNotMeetThoseOfAnother) {
  const Json trace = Merge({Timeline(0, 0), Timeline(1, 0)});
  const std::vector<Json> gathers = EventsNamed(trace, "all_gather");
  ASSERT_EQ(gathers.size(), 4u);
  EXPECT_EQ(gathers[0].at("id"), gathers[1].at("id"));
  EXPECT_EQ(gathers[2].at("id"), gathers[3].at("id"));
  EXPECT_NE(gathers[0].at("id"), gathers[2].at("id"));
}

TEST_F(MergedTraceTest, RanksStandInTheirOrder) {
  const std::vector<Json> places =
      EventsNamed(Merge({Timeline(0, 0), Timeline(1, 0)}), "process_sort_index");
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[1].at("args").at("sort_index"), 1);
}

}  // namespace
}  // namespace fsdprun::worker
