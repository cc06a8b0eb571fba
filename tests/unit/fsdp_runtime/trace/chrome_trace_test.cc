#include "fsdp_runtime/src/trace/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::trace {
namespace {

using nlohmann::json;
using ::testing::SizeIs;

json written(const Recording& recording, const Subject& subject = {}) {
  std::string text;
  write_chrome_trace(recording, subject, [&](std::string_view piece) { text += piece; });
  return json::parse(text);
}

/// What is not about the process and its threads.
std::vector<json> events_of(const json& trace) {
  std::vector<json> events;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "M") {
      events.push_back(event);
    }
  }
  return events;
}

TEST(ChromeTraceTest, SaysWhoseItIs) {
  const json trace =
      written({}, {.rank = 3, .pid = 77, .host = "node-1", .threads = {{78, "lane"}}});
  ASSERT_THAT(trace["traceEvents"], SizeIs(2));
  EXPECT_EQ(trace["traceEvents"][0], (json{{"ph", "M"},
                                           {"name", "process_name"},
                                           {"pid", 3},
                                           {"args", {{"name", "rank 3 on node-1"}}}}));
  EXPECT_EQ(trace["traceEvents"][1], (json{{"ph", "M"},
                                           {"name", "thread_name"},
                                           {"pid", 3},
                                           {"tid", 78},
                                           {"args", {{"name", "lane"}}}}));
  EXPECT_EQ(trace["otherData"]["host"], "node-1");
  EXPECT_EQ(trace["otherData"]["pid"], 77);
}

TEST(ChromeTraceTest, SpanIsACompleteEventInMicrosecondsOfTheWallClock) {
  const Recording recording{{{.kind = Event::Kind::kSpan,
                              .category = "unit",
                              .name = "forward layers.0",
                              .at_ns = 5'000,
                              .length_ns = 2'500,
                              .thread = 9}}};
  const std::vector<json> events =
      events_of(written(recording, {.rank = 1, .clock_offset_ns = 1'000'000}));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["ts"], 1005.0);
  EXPECT_EQ(events[0]["dur"], 2.5);
  EXPECT_EQ(events[0]["tid"], 9);
  EXPECT_EQ(events[0]["pid"], 1);
}

TEST(ChromeTraceTest, BeginningAndEndHaveTheSameId) {
  const Recording recording{
      {{.kind = Event::Kind::kBegin,
        .category = "collective",
        .name = "all_gather for unit layers.0",
        .group = "ranks 0-1",
        .at_ns = 1'000,
        .id = 4,
        .bytes = 64},
       {.kind = Event::Kind::kEnd, .category = "collective", .at_ns = 3'000, .id = 4}}};
  const std::vector<json> events = events_of(written(recording));
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0]["ph"], "b");
  EXPECT_EQ(events[1]["ph"], "e");
  EXPECT_EQ(events[0]["id"], events[1]["id"]);
  EXPECT_EQ(events[0]["cat"], events[1]["cat"]);
  EXPECT_EQ(events[0]["args"], (json{{"bytes", 64}, {"group", "ranks 0-1"}}));
}

TEST(ChromeTraceTest, AmountIsACounter) {
  const Recording recording{{{.kind = Event::Kind::kAmount,
                              .category = "memory",
                              .name = "gathered parameters",
                              .bytes = 128}}};
  const std::vector<json> events = events_of(written(recording));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0]["ph"], "C");
  EXPECT_EQ(events[0]["args"]["bytes"], 128);
}

TEST(ChromeTraceTest, NamesMayBeAnything) {
  const Recording recording{{{.category = "user", .name = "a \"quote\"\n\\ and \xff"}},
                            /*dropped=*/2};
  const json trace = written(recording);
  EXPECT_EQ(events_of(trace)[0]["name"], "a \"quote\"\n\\ and \xef\xbf\xbd");
  EXPECT_EQ(trace["otherData"]["events that there was no room for"], 2);
}

TEST(TraceLogTest, NothingIsKeptUnlessRecording) {
  add({.category = "user", .name = "before"});
  ASSERT_TRUE(begin_recording(8));
  EXPECT_FALSE(begin_recording(8));
  { const Span span("user", "within", "it"); }
  const Recording recording = end_recording();
  add({.category = "user", .name = "after"});
  ASSERT_THAT(recording.events, SizeIs(1));
  EXPECT_EQ(recording.events[0].name, "within it");
  EXPECT_GT(recording.events[0].thread, 0);
  EXPECT_THAT(end_recording().events, SizeIs(0));
}

TEST(TraceLogTest, SpanThatBeginsBeforeIsNotRecorded) {
  {
    const Span span("user", "early", "");
    ASSERT_TRUE(begin_recording(8));
  }
  EXPECT_THAT(end_recording().events, SizeIs(0));
}

TEST(TraceLogTest, WhatThereIsNoRoomForIsCounted) {
  ASSERT_TRUE(begin_recording(2));
  for (int i = 0; i < 5; ++i) {
    add({.category = "user", .name = std::to_string(i)});
  }
  const Recording recording = end_recording();
  ASSERT_THAT(recording.events, SizeIs(2));
  EXPECT_EQ(recording.events[1].name, "1");
  EXPECT_EQ(recording.dropped, 3u);
}

TEST(TraceLogTest, ThreadsAddAtTheSameTime) {
  ASSERT_TRUE(begin_recording(1000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) {
        const Span span("user", "work", "");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(end_recording().events, SizeIs(400));
}

}  // namespace
}  // namespace fsdp::trace
