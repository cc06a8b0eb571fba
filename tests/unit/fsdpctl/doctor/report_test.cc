#include "fsdpctl/doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/report_json.h"
#include "fsdpctl/doctor/report_text.h"

namespace fsdprun::doctor {
namespace {

using json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

Finding Problem() {
  return {CheckGroup::kSharedMemory, "dev_shm",
          Severity::kProblem,        "/dev/shm has 64 MiB",
          "batches pass through it", "docker run --shm-size=8g"};
}

DoctorReport FullReport() {
  DoctorReport report;
  report.own = {
      "node0",
      "1.0",
      {{CheckGroup::kLimits, "open_files", Severity::kOk, "open files: 65536", "", ""},
       {CheckGroup::kLimits, "core_size", Severity::kNote, "core files are off", "why", "do"},
       Problem()}};
  return report;
}

PairReport Pair(const std::string& node) {
  return {.facts = {.own_node = "node0",
                    .node = node,
                    .address = "10.0.0.2",
                    .round_trips = {.count = 5, .median_us = 40, .p99_us = 90},
                    .streams = kManyStreams,
                    .to = {.one_stream = 9.4e9, .many_streams = 20e9}},
          .findings = {{CheckGroup::kPair, "release", Severity::kOk, "both have 1.0", "", ""}},
          .other = {node, "1.0", {Problem()}}};
}

TEST(ReportTextTest, AGroupThatIsFineIsOneLine) {
  const std::string text = ReportText(FullReport(), /*shows_all=*/false);
  EXPECT_THAT(text, HasSubstr("limits         ok: open files: 65536 (1 more, 1 note)\n"));
  EXPECT_THAT(text, Not(HasSubstr("core files")));
  EXPECT_THAT(text, HasSubstr("shared-memory\n  problem  /dev/shm has 64 MiB\n"
                              "      why: batches pass through it\n"
                              "      do:  docker run --shm-size=8g\n"));
  EXPECT_THAT(text, HasSubstr("\n1 problem, 0 warnings, 1 note; --all shows everything\n"));
}

TEST(ReportTextTest, AllShowsWhatIsFineAndNotes) {
  const std::string text = ReportText(FullReport(), /*shows_all=*/true);
  EXPECT_THAT(text, HasSubstr("  note     core files are off\n"));
  EXPECT_THAT(text, HasSubstr("  ok       open files: 65536\n"));
}

TEST(ReportTextTest, WhatSeveralNodesHaveFoundIsSaidOnce) {
  DoctorReport report = FullReport();
  report.pairs = {Pair("node1"), Pair("node2")};
  const std::string text = ReportText(report, false);
  EXPECT_THAT(text, HasSubstr("NODE   ADDRESS   ROUND TRIP"));
  EXPECT_THAT(text, HasSubstr("node1  10.0.0.2  40 us"));
  EXPECT_THAT(text, HasSubstr("9.4 Gbit/s"));
  EXPECT_THAT(text, HasSubstr("/dev/shm has 64 MiB (shared-memory, on node1, node2)\n"));
  EXPECT_THAT(text, HasSubstr("3 problems"));
}

TEST(ReportJsonTest, Fields) {
  DoctorReport report = FullReport();
  report.pairs = {Pair("node1")};
  const std::string text = ReportJson(report);
  EXPECT_THAT(text, Not(HasSubstr("\n")));
  const json object = json::parse(text);
  EXPECT_EQ(object.at("v"), 1);
  EXPECT_EQ(object.at("worst"), "problem");
  EXPECT_EQ(object.at("findings").at(2).at("group"), "shared-memory");
  EXPECT_EQ(object.at("findings").at(2).at("what_to_do"), "docker run --shm-size=8g");
  const json& pair = object.at("pairs").at(0);
  EXPECT_EQ(pair.at("node"), "node1");
  EXPECT_EQ(pair.at("round_trip_median_us"), 40);
  EXPECT_EQ(pair.at("to_bits_per_s"), 9.4e9);
  EXPECT_TRUE(pair.at("from_bits_per_s").is_null());
  for (const char* unknown : {"back", "mtu", "protocol", "release"}) {
    EXPECT_TRUE(pair.at(unknown).is_null()) << unknown;
  }
  EXPECT_EQ(object.at("nodes").at(0).at("node"), "node1");
}

TEST(ReportJsonTest, TheWorstCountsWhereverItIs) {
  DoctorReport report;
  EXPECT_EQ(WorstOf(report), Severity::kOk);
  report.pairs = {Pair("node1")};
  EXPECT_EQ(WorstOf(report), Severity::kProblem);
}

TEST(NodeReportTest, GoesAndComesBack) {
  const NodeReport report = FullReport().own;
  EXPECT_EQ(ParseNodeReport(NodeReportText(report)), report);
}

TEST(NodeReportTest, WhatAnotherNodeSaysIsHeldDown) {
  EXPECT_FALSE(ParseNodeReport("").has_value());
  EXPECT_FALSE(ParseNodeReport("[]").has_value());
  EXPECT_FALSE(ParseNodeReport(R"({"node":"a"})").has_value());
  const std::string text =
      absl::StrCat(R"({"node":"a\u001b[2J","findings":[1,{"severity":"worse","found":")",
                   std::string(10'000, 'x'), R"("},{"group":7}]})");
  const std::optional<NodeReport> report = ParseNodeReport(text);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->node, "a [2J");
  ASSERT_EQ(report->findings.size(), 2u);
  EXPECT_EQ(report->findings[0].found.size(), 2000u);
  EXPECT_EQ(report->findings[0].severity, Severity::kOk);
  std::string many = R"({"node":"a","findings":[{})";
  for (int i = 0; i < 1000; ++i) {
    many += ",{}";
  }
  EXPECT_EQ(ParseNodeReport(many + "]}")->findings.size(), 300u);
}

TEST(PairFactsTest, GoAndComeBackAndCannotBeAnything) {
  PairFacts facts = Pair("node1").facts;
  facts.large_to = {.was_sent = true, .stalled = true, .arrived = 5};
  facts.back = {.address = "10.0.0.2:5", .error = "refused"};
  const std::optional<PairFacts> back = ParsePairFacts(PairFactsText(facts));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(PairFactsText(*back), PairFactsText(facts));
  EXPECT_FALSE(ParsePairFacts("{}").has_value());
  const std::optional<PairFacts> odd = ParsePairFacts(
      R"({"own_node":"a","mtu":-5,"streams":1e99,"trips":3,"to":{"one":"x","segments":-1}})");
  ASSERT_TRUE(odd.has_value());
  EXPECT_EQ(odd->mtu, 0);
  EXPECT_EQ(odd->streams, 0);
  EXPECT_EQ(odd->to.segments, 0u);
}

}  // namespace
}  // namespace fsdprun::doctor
