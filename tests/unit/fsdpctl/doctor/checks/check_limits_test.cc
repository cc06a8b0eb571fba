#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

LimitFacts Enough() {
  return {.open_files = {65536, 1048576},
          .processes = {100000, 100000},
          .locked_memory = {},
          .core = {},
          .stack = {8 * kMib, {}}};
}

TEST(CheckLimitsTest, EnoughIsFine) {
  const std::vector<Finding> findings = CheckLimits(Enough());
  EXPECT_EQ(findings.size(), 6u);
  EXPECT_EQ(WorstOf(findings), Severity::kOk);
}

TEST(CheckLimitsTest, OpenFilesByHardAndSoftLimit) {
  LimitFacts facts = Enough();
  const auto severity = [&facts](uint64_t soft, uint64_t hard) {
    facts.open_files = {soft, hard};
    ExpectAdvice(CheckLimits(facts));
    return SeverityOf(CheckLimits(facts), "open_files");
  };
  EXPECT_EQ(severity(128, 128), Severity::kProblem);
  EXPECT_EQ(severity(1024, 1024), Severity::kWarning);
  EXPECT_EQ(severity(1024, 524288), Severity::kNote);
  EXPECT_EQ(severity(4096, 4096), Severity::kOk);
  facts.open_files = {};
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "open_files"), Severity::kOk);
}

TEST(CheckLimitsTest, ProcessesOfAUserDoNotHoldForWhoMayExceedThem) {
  LimitFacts facts = Enough();
  facts.processes = {100, 100};
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "user_processes"), Severity::kProblem);
  facts.processes = {1000, 1000};
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "user_processes"), Severity::kWarning);
  facts.may_exceed_processes = true;
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "user_processes"), Severity::kOk);
}

TEST(CheckLimitsTest, OfACgroupsPidsTheRestCounts) {
  LimitFacts facts = Enough();
  const auto severity = [&facts](uint64_t most, uint64_t used) {
    facts.pids_max = most;
    facts.pids_used = used;
    return SeverityOf(CheckLimits(facts), "pids_cgroup");
  };
  EXPECT_EQ(severity(4096, 100), Severity::kOk);
  EXPECT_EQ(severity(4096, 3500), Severity::kWarning);
  EXPECT_EQ(severity(4096, 4000), Severity::kProblem);
  EXPECT_EQ(severity(100, 200), Severity::kProblem);  // It was lowered.
  EXPECT_THAT(FindingOf(CheckLimits(facts), "pids_cgroup").what_to_do,
              HasSubstr("docker run --pids-limit=-1"));
}

TEST(CheckLimitsTest, LockedMemoryCountsWhereThereAreRdmaCards) {
  LimitFacts facts = Enough();
  facts.locked_memory = {8 * kMib, 8 * kMib};
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "locked_memory"), Severity::kOk);
  facts.has_rdma = true;
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "locked_memory"), Severity::kProblem);
  facts.locked_memory = {kGib, kGib};
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "locked_memory"), Severity::kWarning);
  facts.may_lock_memory = true;
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "locked_memory"), Severity::kOk);
}

TEST(CheckLimitsTest, CoreFilesAndStack) {
  LimitFacts facts = Enough();
  facts.core = {0, {}};
  facts.stack = {512 * kKib, {}};
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "core_size"), Severity::kNote);
  EXPECT_EQ(SeverityOf(CheckLimits(facts), "stack"), Severity::kWarning);
}

TEST(AmountsTest, TextsForPeople) {
  EXPECT_EQ(BytesText(100), "100 bytes");
  EXPECT_EQ(BytesText(64 * kMib), "64 MiB");
  EXPECT_EQ(BytesText(3 * kGib / 2), "1.5 GiB");
  EXPECT_EQ(MicrosText(85), "85 us");
  EXPECT_EQ(MicrosText(12'500), "12.5 ms");
  EXPECT_EQ(RateText(9.41e9), "9.4 Gbit/s");
  EXPECT_EQ(RateText(64e3), "64 kbit/s");
  EXPECT_EQ(LimitText({}), "unlimited");
}

}  // namespace
}  // namespace fsdprun::doctor
