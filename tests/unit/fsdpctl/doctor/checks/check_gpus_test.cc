#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"
#include "tests/unit/fsdpctl/doctor/checks/finding_of.h"

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

GpuFacts TwoGpus() {
  Gpu gpu{.name = "H100",
          .persistence = true,
          .mig = false,
          .uncorrected_errors = 0,
          .remap_pending = false,
          .remap_failed = false,
          .pcie_width = 16,
          .pcie_max_width = 16,
          .throttle_reasons = 1,
          .compute_mode = 0,
          .memory_used = 0,
          .memory_total = 80 * kGib};
  GpuFacts facts{.on_bus = 2,
                 .has_driver = true,
                 .device_nodes = 2,
                 .has_control_node = true,
                 .has_uvm_node = true,
                 .nvml = NvmlState::kAnswered,
                 .driver_version = "550.1",
                 .gpus = {gpu, gpu}};
  facts.gpus[1].index = 1;
  return facts;
}

TEST(CheckGpusTest, NoneIsNoWarning) {
  const std::vector<Finding> findings = CheckGpus({});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kOk);
  EXPECT_THAT(findings[0].found, HasSubstr("no GPU"));
}

TEST(CheckGpusTest, HealthyOnes) {
  const std::vector<Finding> findings = CheckGpus(TwoGpus());
  EXPECT_EQ(WorstOf(findings), Severity::kOk);
  EXPECT_THAT(FindingOf(findings, "kinds").found, HasSubstr("2 NVIDIA GPUs (H100), driver 550.1"));
}

TEST(CheckGpusTest, WithoutDriverOrDeviceNodes) {
  EXPECT_EQ(SeverityOf(CheckGpus({.on_bus = 8}), "driver"), Severity::kWarning);
  const Finding laptop = FindingOf(CheckGpus({.on_bus = 1, .bus_drivers = {"nouveau"}}), "driver");
  EXPECT_EQ(laptop.severity, Severity::kWarning);
  EXPECT_THAT(laptop.found, HasSubstr("an NVIDIA GPU is on the PCI bus"));
  EXPECT_THAT(laptop.why, HasSubstr("nouveau"));
  EXPECT_THAT(FindingOf(CheckGpus({.on_bus = 2, .bus_drivers = {"vfio-pci"}}), "driver").why,
              HasSubstr("virtual machines"));
  GpuFacts facts = TwoGpus();
  facts.has_control_node = false;
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "device_nodes"), Severity::kProblem);
  facts = TwoGpus();
  facts.has_uvm_node = false;
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "device_nodes"), Severity::kProblem);
  // A container for CPUs on a machine with GPUs, whatever the image has of the driver.
  facts.device_nodes = 0;
  facts.nvml = NvmlState::kFailed;
  EXPECT_EQ(WorstOf(CheckGpus(facts)), Severity::kWarning);
  EXPECT_THAT(FindingOf(CheckGpus(facts), "device_nodes").what_to_do,
              HasSubstr("docker run --gpus all"));
}

TEST(CheckGpusTest, DriverThatCannotBeAsked) {
  GpuFacts facts = TwoGpus();
  facts.nvml = NvmlState::kHangs;
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "nvml"), Severity::kProblem);
  facts.nvml = NvmlState::kFailed;
  facts.nvml_error = "Driver/library version mismatch";
  EXPECT_THAT(FindingOf(CheckGpus(facts), "nvml").found, HasSubstr("version mismatch"));
  facts.nvml = NvmlState::kMissing;
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "nvml"), Severity::kWarning);
}

TEST(CheckGpusTest, EachRuleNamesTheGpus) {
  const auto finding = [](const char* check, void (*spoil)(Gpu*)) {
    GpuFacts facts = TwoGpus();
    spoil(&facts.gpus[1]);
    ExpectAdvice(CheckGpus(facts));
    const Finding found = FindingOf(CheckGpus(facts), check);
    EXPECT_THAT(found.found, HasSubstr("GPU 1 "));
    return found.severity;
  };
  EXPECT_EQ(finding("ecc", [](Gpu* g) { g->uncorrected_errors = 3; }), Severity::kProblem);
  EXPECT_EQ(finding("remap_pending", [](Gpu* g) { g->remap_pending = true; }), Severity::kProblem);
  EXPECT_EQ(finding("remap_failed", [](Gpu* g) { g->remap_failed = true; }), Severity::kProblem);
  EXPECT_EQ(finding("compute_mode", [](Gpu* g) { g->compute_mode = 2; }), Severity::kProblem);
  EXPECT_EQ(finding("exclusive_mode", [](Gpu* g) { g->compute_mode = 3; }), Severity::kNote);
  EXPECT_EQ(finding("throttle", [](Gpu* g) { g->throttle_reasons = 0x40; }), Severity::kWarning);
  EXPECT_EQ(finding("pcie_width", [](Gpu* g) { g->pcie_width = 4; }), Severity::kWarning);
  EXPECT_EQ(finding("mig", [](Gpu* g) { g->mig = true; }), Severity::kNote);
  EXPECT_EQ(finding("in_use", [](Gpu* g) { g->memory_used = 20 * kGib; }), Severity::kNote);
  EXPECT_EQ(finding("persistence", [](Gpu* g) { g->persistence = false; }), Severity::kNote);
}

TEST(CheckGpusTest, WhatTheDriverDoesNotSayIsNotHeldAgainstIt) {
  GpuFacts facts = TwoGpus();
  facts.gpus = {{.name = "old"}, {.index = 1, .name = "old"}};
  EXPECT_EQ(WorstOf(CheckGpus(facts)), Severity::kOk);
}

TEST(CheckGpusTest, AllTogether) {
  GpuFacts facts = TwoGpus();
  facts.gpus[1].name = "A100";
  facts.pairs_without_peer_access = 1;
  facts.visible = "";
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "kinds"), Severity::kWarning);
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "peer_access"), Severity::kNote);
  EXPECT_EQ(SeverityOf(CheckGpus(facts), "visible"), Severity::kWarning);
}

NcclFacts Cluster() {
  return {.version = 22809,
          .interfaces = {{.name = "lo", .is_up = true, .is_loopback = true},
                         {.name = "eth0", .is_up = true}},
          .rdma = {{"mlx5_0", 1, "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"}},
          .has_rdma_nodes = true,
          .has_gpus = true};
}

TEST(CheckNcclTest, ClusterThatIsFine) {
  const std::vector<Finding> findings = CheckNccl(Cluster());
  EXPECT_EQ(WorstOf(findings), Severity::kOk);
  EXPECT_THAT(FindingOf(findings, "library").found, HasSubstr("NCCL 2.28.9"));
  EXPECT_THAT(FindingOf(findings, "rdma").found, HasSubstr("400 Gb/sec"));
  EXPECT_EQ(WorstOf(CheckNccl({})), Severity::kOk);
}

TEST(CheckNcclTest, InterfaceThatIsNotHere) {
  NcclFacts facts = Cluster();
  facts.environment = {{"NCCL_SOCKET_IFNAME", "ib0"}};
  const Finding interface = FindingOf(CheckNccl(facts), "interface");
  EXPECT_EQ(interface.severity, Severity::kProblem);
  EXPECT_THAT(interface.what_to_do, HasSubstr("eth0"));
  facts.environment = {{"GLOO_SOCKET_IFNAME", "eth"}};  // Not a prefix there.
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "interface"), Severity::kProblem);
  facts.environment = {{"NCCL_SOCKET_IFNAME", "eth"}};
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "interface"), Severity::kOk);
  facts.environment = {{"NCCL_SOCKET_IFNAME", "lo"}};
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "interface"), Severity::kWarning);
}

TEST(CheckNcclTest, VariablesThatHurt) {
  NcclFacts facts = Cluster();
  facts.environment = {{"NCCL_P2P_DISABLE", "1"}};
  const Finding variable = FindingOf(CheckNccl(facts), "variable");
  EXPECT_EQ(variable.severity, Severity::kWarning);
  EXPECT_THAT(variable.what_to_do, HasSubstr("unset NCCL_P2P_DISABLE"));
  facts.environment = {{"NCCL_P2P_DISABLE", "0"}};
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "variable"), Severity::kOk);
  facts.environment = {{"NCCL_DEBUG", "info"}};
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "variable"), Severity::kNote);
}

TEST(CheckNcclTest, RdmaCards) {
  NcclFacts facts = Cluster();
  facts.environment = {{"NCCL_IB_DISABLE", "1"}, {"NCCL_IB_HCA", "mlx5_0,mlx5_9"}};
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "rdma_disabled"), Severity::kWarning);
  EXPECT_THAT(FindingOf(CheckNccl(facts), "rdma_card").found, HasSubstr("mlx5_9"));
  facts.rdma.push_back({"mlx5_1", 1, "1: DOWN", "10 Gb/sec", "InfiniBand"});
  facts.has_rdma_nodes = false;
  EXPECT_THAT(FindingOf(CheckNccl(facts), "rdma_down").found, HasSubstr("mlx5_1:1"));
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "rdma_nodes"), Severity::kWarning);
  facts.rdma.erase(facts.rdma.begin());
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "rdma"), Severity::kWarning);
  facts.environment = {};
  facts.has_gpus = false;  // NCCL does not run here.
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "rdma_nodes"), Severity::kNote);
  EXPECT_EQ(SeverityOf(CheckNccl(facts), "rdma"), Severity::kNote);
}

}  // namespace
}  // namespace fsdprun::doctor
