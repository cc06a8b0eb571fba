#include "worker/metrics/merged_trace.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace fsdprun::worker {
namespace {

/// Of an event in the document: it stands in a list in it.
constexpr int kEventDepth = 2;

using OnEvent = std::function<void(Json& event)>;

/// Hands over the events of a timeline one after the other. Returns the rest of it.
Json ReadTimeline(const std::filesystem::path& path, const OnEvent& on_event) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw ConfigError("trace " + path.string() + ": cannot be read");
  }
  bool is_in_events = false;
  const auto look = [&](int depth, Json::parse_event_t what, Json& parsed) {
    if (what == Json::parse_event_t::key && depth == 1) {
      is_in_events = parsed == "traceEvents";
    }
    if (what != Json::parse_event_t::object_end || depth != kEventDepth || !is_in_events) {
      return true;
    }
    on_event(parsed);
    return false;  // it is not kept
  };
  try {
    return Json::parse(in, look);
  } catch (const Json::exception& error) {
    throw ConfigError("trace " + path.string() + ": is no timeline: " + error.what());
  }
}

/// What must be known of a timeline before any of its events can be placed.
struct TimelineFacts {
  int64_t rank = 0;
  std::optional<double> mark;  // when it ends, in microseconds of the rank's clock
  double first = std::numeric_limits<double>::infinity();
};

TimelineFacts FactsOf(const std::filesystem::path& path) {
  TimelineFacts facts;
  const Json rest = ReadTimeline(path, [&facts](const Json& event) {
    if (event.contains("ts")) {
      facts.first = std::min(facts.first, event.at("ts").get<double>());
    }
    if (!facts.mark && event.at("name") == kClockMark && event.at("ph") == "X") {
      facts.mark = event.at("ts").get<double>() + event.at("dur").get<double>();
    }
  });
  const Json rank = rest.is_object() ? rest.value("otherData", Json::object()) : Json::object();
  if (!rank.is_object() || !rank.contains("rank") || !rank.at("rank").is_number_integer()) {
    throw ConfigError("trace " + path.string() + ": does not say its rank");
  }
  facts.rank = rank.at("rank").get<int64_t>();
  if (!facts.mark) {
    throw ConfigError("trace of rank " + std::to_string(facts.rank) + ": has no range " +
                      kClockMark + ", by which the ranks' clocks are compared");
  }
  return facts;
}

/// The ranks stand in their order.
Json PlaceOf(int64_t rank) {
  return {
      {"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"args", {{"sort_index", rank}}}};
}

/// Where a time of a rank's clock is in the merged timeline. The sum is what `begin` is the least
/// of, so that none is before it: a clock's microseconds are too large for doubles to add exactly.
struct Shift {
  double to_first_rank = 0;
  double begin = 0;

  double operator()(double time) const { return (time + to_first_rank) - begin; }
};

void WriteEvents(const std::filesystem::path& path, int64_t rank, const Shift& shift,
                 std::ostream& out) {
  out << PlaceOf(rank).dump();
  ReadTimeline(path, [&](Json& event) {
    if (event.contains("ts")) {
      event["ts"] = shift(event.at("ts").get<double>());
    }
    if (event.contains("id")) {  // which is unique in its process only
      event["id"] = std::to_string(rank) + "." + event.at("id").dump();
    }
    out << ",\n" << event.dump();
  });
}

}  // namespace

void MergeTraces(const std::vector<std::filesystem::path>& timelines, std::ostream& out) {
  std::vector<TimelineFacts> facts;
  double begin = std::numeric_limits<double>::infinity();
  for (const std::filesystem::path& path : timelines) {
    facts.push_back(FactsOf(path));
    begin = std::min(begin, facts.back().first + (*facts.front().mark - *facts.back().mark));
  }
  const Json other = {{"ranks", timelines.size()}};
  out << R"({"displayTimeUnit":"ms","otherData":)" << other.dump() << ",\"traceEvents\":[\n";
  for (size_t i = 0; i < timelines.size(); ++i) {
    out << (i == 0 ? "" : ",\n");
    WriteEvents(timelines[i], facts[i].rank, {*facts.front().mark - *facts[i].mark, begin}, out);
  }
  out << "\n]}\n";
}

}  // namespace fsdprun::worker
