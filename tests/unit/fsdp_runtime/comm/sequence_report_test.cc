#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp_runtime/src/comm/sequence_recorder.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SequenceReport report_of(const std::vector<std::string>& units, uint64_t round = 1) {
  IssueLog log;
  for (const std::string& unit : units) {
    log.add(
        Lane::kGather,
        {.kind = shm::Kind::kAllGather, .numel = 8, .purpose = shm::purpose_of("unit " + unit)});
  }
  return {round, 0, log.bytes_of(Lane::kGather), log.bytes_of(Lane::kReduce)};
}

TEST(FindDifferenceTest, WhoIsBehindIsNotAtFaultUntilNothingMoves) {
  const std::vector<SequenceReport> reports = {report_of({"a", "b"}), report_of({"a"})};
  EXPECT_EQ(find_difference(reports, {}, false), "");
  EXPECT_THAT(find_difference(reports, {4, 6}, true),
              AllOf(HasSubstr("rank 4 has issued 2"), HasSubstr("rank 6 has issued 1")));
}

TEST(FindDifferenceTest, WhatAllHaveIssuedIsComparedAtOnce) {
  EXPECT_THAT(find_difference({report_of({"a", "b", "c"}), report_of({"b"})}, {4, 6}, false),
              AllOf(HasSubstr("rank 4 issued all_gather #1 for unit a"),
                    HasSubstr("rank 6 issued all_gather #1 for unit b")));
}

TEST(FindDifferenceTest, SameOperationsThatAreSlowAreNoError) {
  EXPECT_EQ(find_difference({report_of({"a"}), report_of({"a"})}, {}, true), "");
}

TEST(FindDifferenceTest, RoundsAreNotMixed) {
  EXPECT_EQ(find_difference({report_of({"a"}, 1), report_of({"b"}, 2)}, {}, true), "");
}

TEST(SequenceReportTest, IsReadAsItWasWritten) {
  const SequenceReport written = report_of({"a", "b"}, 7);
  const SequenceReport read = SequenceReport::parse(written.text());
  EXPECT_EQ(read.round, 7U);
  EXPECT_EQ(read.gather_lane, written.gather_lane);
  EXPECT_EQ(read.reduce_lane, written.reduce_lane);
  for (const std::string text : {"", "7", "7 0 99 short", "x y z "}) {
    EXPECT_EQ(SequenceReport::parse(text).gather_lane, "") << text;
  }
}

}  // namespace
}  // namespace fsdp
