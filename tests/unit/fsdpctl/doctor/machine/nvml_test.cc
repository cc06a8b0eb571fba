#include "fsdpctl/doctor/machine/nvml.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>

#include "fsdpctl/doctor/machine/read_facts.h"

namespace fsdprun::doctor {
namespace {

// The library is fake_nvml.cc.
class NvmlTest : public ::testing::Test {
 protected:
  ~NvmlTest() override { ::unsetenv("FAKE_NVML"); }
};

TEST_F(NvmlTest, WhatTheDriverSaysOfEachGpu) {
  GpuFacts facts;
  AskNvml(&facts);
  ASSERT_EQ(facts.nvml, NvmlState::kAnswered) << facts.nvml_error;
  EXPECT_EQ(facts.driver_version, "570.86");
  EXPECT_EQ(facts.pairs_without_peer_access, 1);
  ASSERT_EQ(facts.gpus.size(), 2u);
  const Gpu& well = facts.gpus[0];
  const Gpu& ill = facts.gpus[1];
  EXPECT_EQ(well.name, "NVIDIA Fake");
  EXPECT_EQ(well.persistence, true);
  EXPECT_EQ(ill.persistence, false);
  EXPECT_FALSE(well.mig.has_value());
  EXPECT_EQ(well.uncorrected_errors, 0u);
  EXPECT_EQ(ill.uncorrected_errors, 7u);
  EXPECT_EQ(ill.remap_pending, true);
  EXPECT_EQ(ill.remap_failed, false);
  EXPECT_EQ(ill.pcie_width, 8);
  EXPECT_EQ(ill.pcie_max_width, 16);
  EXPECT_EQ(ill.compute_mode, 0);
  EXPECT_EQ(ill.memory_used, 100u);
  EXPECT_EQ(ill.memory_total, 1000u);
  EXPECT_FALSE(ill.throttle_reasons.has_value());  // This version has no such function.
}

TEST_F(NvmlTest, DriverOfAnotherVersion) {
  ::setenv("FAKE_NVML", "mismatch", 1);
  GpuFacts facts;
  AskNvml(&facts);
  EXPECT_EQ(facts.nvml, NvmlState::kFailed);
  EXPECT_EQ(facts.nvml_error, "Driver/library version mismatch");
}

TEST_F(NvmlTest, DriverThatHangsIsGivenUp) {
  ::setenv("FAKE_NVML", "hang", 1);
  GpuFacts facts;
  AskNvml(&facts, std::chrono::milliseconds(200));
  EXPECT_EQ(facts.nvml, NvmlState::kHangs);
}

TEST_F(NvmlTest, VersionOfNccl) { EXPECT_EQ(NcclVersion(), 22104); }

}  // namespace
}  // namespace fsdprun::doctor
