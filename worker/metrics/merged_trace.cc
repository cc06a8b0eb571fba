#include "worker/metrics/merged_trace.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace fsdprun::worker {
namespace {

int64_t RankOf(const Json& timeline) { return timeline.at("otherData").at("rank"); }

/// When the mark ends, in microseconds of the rank's clock.
double MarkIn(const Json& timeline) {
  for (const Json& event : timeline.at("traceEvents")) {
    if (event.at("name") == kClockMark && event.at("ph") == "X") {
      return event.at("ts").get<double>() + event.at("dur").get<double>();
    }
  }
  throw ConfigError("trace of rank " + std::to_string(RankOf(timeline)) + ": has no range " +
                    kClockMark + ", by which the ranks' clocks are compared");
}

double FirstTimeIn(const std::vector<Json>& timelines, const std::vector<double>& offsets) {
  double first = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < timelines.size(); ++i) {
    for (const Json& event : timelines[i].at("traceEvents")) {
      if (event.contains("ts")) {
        first = std::min(first, event.at("ts").get<double>() + offsets[i]);
      }
    }
  }
  return first;
}

/// The ranks stand in their order.
Json PlaceOf(int64_t rank) {
  return {
      {"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}};
}

}  // namespace

Json MergeTraces(const std::vector<Json>& timelines) {
  std::vector<double> offsets;
  offsets.reserve(timelines.size());
  for (const Json& timeline : timelines) {
    offsets.push_back(MarkIn(timelines.front()) - MarkIn(timeline));
  }
  const double begin = FirstTimeIn(timelines, offsets);
  Json events = Json::array();
  for (size_t i = 0; i < timelines.size(); ++i) {
    const int64_t rank = RankOf(timelines[i]);
    events.push_back(PlaceOf(rank));
    for (Json event : timelines[i].at("traceEvents")) {
      if (event.contains("ts")) {
        event["ts"] = event.at("ts").get<double>() + offsets[i] - begin;
      }
      if (event.contains("id")) {  // which is unique in its process only
        event["id"] = std::to_string(rank) + "." + event.at("id").dump();
      }
      events.push_back(std::move(event));
    }
  }
  return {{"displayTimeUnit", "ms"},
          {"otherData", {{"ranks", timelines.size()}}},
          {"traceEvents", std::move(events)}};
}

}  // namespace fsdprun::worker
