#include "fsdp_runtime/src/comm/issue_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRemembered = static_cast<int>(IssueLog::kRemembered);

/// A log of `count` operations; from number `odd` (from 1) on all are for another unit. 0: none.
IssueLog log_of(int count, int odd = 0, Lane lane = Lane::kGather) {
  IssueLog log;
  for (int number = 1; number <= count; ++number) {
    const bool is_odd = odd > 0 && number >= odd;
    log.add(lane, {.kind = shm::Kind::kAllGather,
                   .numel = 8,
                   .purpose = shm::purpose_of(is_odd ? "unit b" : "unit a")});
  }
  return log;
}

std::string difference(const std::vector<IssueLog>& logs, Lane lane = Lane::kGather) {
  std::vector<std::string> by_rank;
  for (const IssueLog& log : logs) {
    by_rank.push_back(log.bytes_of(lane));
  }
  return logs.front().first_difference(lane, by_rank);
}

TEST(IssueLogTest, SameOperationsDoNotDiffer) {
  for (const int count : {0, 1, kRemembered, kRemembered + 1, 3 * kRemembered}) {
    EXPECT_EQ(difference({log_of(count), log_of(count), log_of(count)}), "") << count;
  }
  EXPECT_EQ(difference({log_of(3), log_of(4)}, Lane::kReduce), "");
}

TEST(IssueLogTest, FirstDifferenceOfWhatAllRememberIsNamed) {
  EXPECT_THAT(
      difference({log_of(9), log_of(9, 5)}),
      AllOf(HasSubstr("rank 0 issued all_gather #5 for unit a on lane 0"),
            HasSubstr("but rank 1 issued all_gather #5 for unit b"), Not(HasSubstr("remember"))));
  EXPECT_THAT(difference({log_of(9), log_of(7)}),
              AllOf(HasSubstr("rank 0 issued all_gather #8"), Not(HasSubstr("remember"))));
}

TEST(IssueLogTest, RankThatIsAheadIsComparedAtTheSameNumbers) {
  // Rank 0 has begun anew one operation before rank 1 would have.
  const std::string text = difference({log_of(kRemembered + 1), log_of(kRemembered)});
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0 issued all_gather #4097 for unit a"),
                          HasSubstr("but rank 1 issued barrier #4097"),
                          HasSubstr("not all ranks remember the 4096 operations"),
                          HasSubstr("an earlier one may be the first")));
}

TEST(IssueLogTest, WhatOneRankHasForgottenIsNotBlamedOnAnOperation) {
  const std::string text =
      difference({log_of(kRemembered + 5), log_of(kRemembered - 3), log_of(kRemembered + 5)});
  EXPECT_THAT(text, AllOf(HasSubstr("on lane 0"), HasSubstr("rank 1 has issued 4093"),
                          HasSubstr("rank 2 has issued 4101 and does not remember the first 4096"),
                          Not(HasSubstr("unit a")), Not(HasSubstr("#"))));
}

TEST(IssueLogTest, DifferenceAfterForgottenOnesSaysThatAnEarlierOneMayDifferToo) {
  const std::string text =
      difference({log_of(kRemembered + 9), log_of(kRemembered + 9, kRemembered + 4)});
  EXPECT_THAT(text, AllOf(HasSubstr("but rank 1 issued all_gather #4100 for unit b"),
                          HasSubstr("an earlier one may be the first")));
}

TEST(IssueLogTest, BytesThatAreNoLogAreThoseOfARankThatHasIssuedNothing) {
  const IssueLog log = log_of(1);
  EXPECT_THAT(log.first_difference(Lane::kGather, {log.bytes_of(Lane::kGather), "", "abc"}),
              HasSubstr("but ranks 1 and 2 issued barrier #1"));
}

}  // namespace
}  // namespace fsdp
