#include <gtest/gtest.h>

#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

MemoryFacts Much() {
  return {.total = 512 * kGib, .available = 500 * kGib, .max_map_count = 65530};
}

TEST(CheckMemoryTest, MuchIsFine) { EXPECT_EQ(WorstOf(CheckMemory(Much())), Severity::kOk); }

TEST(CheckMemoryTest, LittleIsLeft) {
  MemoryFacts facts = Much();
  facts.available = kGib;
  EXPECT_EQ(SeverityOf(CheckMemory(facts), "available"), Severity::kWarning);
  facts.total = 4 * kGib;  // A quarter of a small machine is not little.
  EXPECT_EQ(SeverityOf(CheckMemory(facts), "available"), Severity::kOk);
}

TEST(CheckMemoryTest, ACgroupsLimitIsComparedWithTheMachine) {
  MemoryFacts facts = Much();
  const auto severity = [&facts](uint64_t limit, uint64_t used) {
    facts.cgroup_limit = limit;
    facts.cgroup_used = used;
    ExpectAdvice(CheckMemory(facts));
    return SeverityOf(CheckMemory(facts), "memory_cgroup");
  };
  EXPECT_EQ(severity(600 * kGib, 0), Severity::kOk);
  EXPECT_EQ(severity(64 * kGib, kGib), Severity::kNote);
  EXPECT_EQ(severity(64 * kGib, 63 * kGib), Severity::kWarning);
  EXPECT_EQ(severity(kGib, 0), Severity::kWarning);
}

TEST(CheckMemoryTest, WhatMayKillOrRefuse) {
  MemoryFacts facts = Much();
  facts.swap_total = 8 * kGib;
  facts.swap_free = 5 * kGib;
  facts.oom_score_adj = 1000;
  facts.overcommit = 2;
  facts.max_map_count = 1000;
  const std::vector<Finding> findings = CheckMemory(facts);
  ExpectAdvice(findings);
  EXPECT_EQ(SeverityOf(findings, "swap"), Severity::kNote);
  EXPECT_EQ(SeverityOf(findings, "oom_score"), Severity::kWarning);
  EXPECT_EQ(SeverityOf(findings, "overcommit"), Severity::kWarning);
  EXPECT_EQ(SeverityOf(findings, "max_map_count"), Severity::kWarning);
  facts.oom_score_adj = 2;
  EXPECT_EQ(SeverityOf(CheckMemory(facts), "oom_score"), Severity::kNote);
}

TEST(CheckCpusTest, OneCoreOfMany) {
  CpuFacts facts{.online = 64, .allowed = 64};
  EXPECT_EQ(WorstOf(CheckCpus(facts)), Severity::kOk);
  facts.allowed = 8;
  EXPECT_EQ(SeverityOf(CheckCpus(facts), "affinity"), Severity::kNote);
  facts.allowed = 1;
  facts.is_in_slurm = true;
  EXPECT_EQ(SeverityOf(CheckCpus(facts), "affinity"), Severity::kWarning);
  EXPECT_NE(FindingOf(CheckCpus(facts), "affinity").what_to_do.find("--cpus-per-task"),
            std::string::npos);
  EXPECT_EQ(SeverityOf(CheckCpus({.online = 1, .allowed = 1}), "affinity"), Severity::kOk);
}

TEST(CheckCpusTest, QuotaBelowWhatIsVisible) {
  CpuFacts facts{.online = 64, .allowed = 64, .quota = 4};
  EXPECT_EQ(SeverityOf(CheckCpus(facts), "quota"), Severity::kWarning);
  facts.allowed = 4;
  EXPECT_EQ(SeverityOf(CheckCpus(facts), "quota"), Severity::kOk);
  facts.omp_threads = "64";
  EXPECT_EQ(SeverityOf(CheckCpus(facts), "omp_threads"), Severity::kWarning);
}

}  // namespace
}  // namespace fsdprun::doctor
