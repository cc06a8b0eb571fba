#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

/// NVML's bits: hardware slowdown, thermal ones of software and hardware, power brake.
constexpr uint64_t kSlowdown = 0x8 | 0x20 | 0x40 | 0x80;
constexpr int kSharedMode = 0;
constexpr int kProhibitedMode = 2;
constexpr uint64_t kUsedByOthers = kGib;

using IsSo = bool (*)(const Gpu& gpu);

/// `0, 3`: those GPUs of which it is so.
std::string Numbers(const GpuFacts& facts, IsSo is_so) {
  std::vector<int> numbers;
  for (const Gpu& gpu : facts.gpus) {
    if (is_so(gpu)) {
      numbers.push_back(gpu.index);
    }
  }
  return absl::StrJoin(numbers, ", ");
}

/// What is said of those GPUs of which `is_so` is true.
struct GpuRule {
  const char* check;
  Severity severity;
  IsSo is_so;
  const char* what;
  const char* why;
  const char* what_to_do;
};

constexpr GpuRule kRules[] = {
    {"remap_failed", Severity::kProblem, [](const Gpu& gpu) { return gpu.remap_failed == true; },
     "cannot replace a broken row of memory any more", "results are wrong, or jobs die (Xid 64)",
     "take the GPU out of service and have it replaced; until then leave it out with "
     "CUDA_VISIBLE_DEVICES"},
    {"remap_pending", Severity::kProblem, [](const Gpu& gpu) { return gpu.remap_pending == true; },
     "will replace a broken row of memory with the next reset",
     "until then jobs that touch it die (Xid 63, 94)", "end its jobs, and `nvidia-smi -r`"},
    {"ecc", Severity::kProblem,
     [](const Gpu& gpu) { return gpu.uncorrected_errors.value_or(0) > 0; },
     "had memory errors that ECC could not correct since the driver was loaded",
     "jobs on it die (Xid 48)",
     "end its jobs, and `nvidia-smi -r`; have it replaced if they return"},
    {"compute_mode", Severity::kProblem,
     [](const Gpu& gpu) { return gpu.compute_mode == kProhibitedMode; },
     "is closed to programs (compute mode 'prohibited')", "CUDA sees no such device",
     "`nvidia-smi -c 0`"},
    {"exclusive_mode", Severity::kNote,
     [](const Gpu& gpu) {
       return gpu.compute_mode.value_or(kSharedMode) != kSharedMode &&
              gpu.compute_mode != kProhibitedMode;
     },
     "takes one process only (compute mode 'exclusive')",
     "a worker that is still ending keeps the next one out", "`nvidia-smi -c 0`"},
    {"throttle", Severity::kWarning,
     [](const Gpu& gpu) { return (gpu.throttle_reasons.value_or(0) & kSlowdown) != 0; },
     "is slowed down by heat or its power supply", "the slowest GPU sets the pace of all",
     "look at `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`, fans and power cables"},
    {"pcie_width", Severity::kWarning,
     [](const Gpu& gpu) {
       return gpu.pcie_width.has_value() && gpu.pcie_max_width.has_value() &&
              *gpu.pcie_width < *gpu.pcie_max_width;
     },
     "uses fewer PCIe lanes than it has", "copies from and to it are slow",
     "look at `nvidia-smi -q -d PCIE`; reseat the card or its riser"},
    {"mig", Severity::kNote, [](const Gpu& gpu) { return gpu.mig == true; }, "is divided (MIG)",
     "NCCL cannot connect instances of one GPU with each other",
     "one worker for each GPU at most; `nvidia-smi -mig 0` undivides it"},
    {"in_use", Severity::kNote,
     [](const Gpu& gpu) { return gpu.memory_used.value_or(0) > kUsedByOthers; }, "is in use",
     "what others use of its memory is not there for this job",
     "see who: `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv`"},
    {"persistence", Severity::kNote, [](const Gpu& gpu) { return gpu.persistence == false; },
     "is not in persistence mode", "its first use takes seconds, each time that nobody uses it",
     "`nvidia-smi -pm 1`, or nvidia-persistenced"},
};

void CheckEachGpu(const GpuFacts& facts, Findings* findings) {
  for (const GpuRule& rule : kRules) {
    const std::string numbers = Numbers(facts, rule.is_so);
    if (!numbers.empty()) {
      findings->Add(rule.severity, rule.check,
                    {absl::StrCat("GPU ", numbers, " ", rule.what), rule.why, rule.what_to_do});
    }
  }
}

void CheckAllGpus(const GpuFacts& facts, Findings* findings) {
  std::vector<std::string> kinds;
  for (const Gpu& gpu : facts.gpus) {
    if (std::find(kinds.begin(), kinds.end(), gpu.name) == kinds.end()) {
      kinds.push_back(gpu.name);
    }
  }
  const std::string found =
      absl::StrCat(facts.gpus.size(), " NVIDIA GPUs (", absl::StrJoin(kinds, ", "), "), driver ",
                   facts.driver_version);
  if (kinds.size() > 1) {
    findings->Warn("kinds", {found, "the slowest sets the pace, and the smallest the memory",
                             "choose equal ones with CUDA_VISIBLE_DEVICES"});
  } else {
    findings->Ok("kinds", found);
  }
  if (facts.pairs_without_peer_access > 0) {
    findings->Note("peer_access",
                   {absl::StrCat(facts.pairs_without_peer_access,
                                 " pairs of GPUs cannot read each other's memory"),
                    "NCCL copies through the host's memory between them, which is slower",
                    "see `nvidia-smi topo -p2p r`; in virtual machines and with IOMMU it is often "
                    "off"});
  }
  if (facts.visible == "") {
    findings->Warn("visible", {"CUDA_VISIBLE_DEVICES is set and empty", "programs see no GPU",
                               "`unset CUDA_VISIBLE_DEVICES`"});
  }
}

/// False, with a finding, if the driver cannot be asked.
bool CheckDriver(const GpuFacts& facts, Findings* findings) {
  switch (facts.nvml) {
    case NvmlState::kHangs:
      findings->Problem("nvml", {"the NVIDIA driver does not answer",
                                 "whatever uses a GPU hangs, and may not even be killed",
                                 "`dmesg | grep -i xid`, then reboot the machine"});
      return false;
    case NvmlState::kFailed:
      findings->Problem(
          "nvml", {absl::StrCat("the NVIDIA driver cannot be asked: ", facts.nvml_error),
                   "CUDA will fail, too",
                   "`nvidia-smi` says more; after an update of the driver reboot, or load its new "
                   "module; in a container start it again"});
      return false;
    case NvmlState::kMissing:
      findings->Warn("nvml",
                     {"there is an NVIDIA driver, but no libnvidia-ml.so.1",
                      "nothing can be said of the GPUs; in a container CUDA may be missing, "
                      "too",
                      "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"});
      return false;
    default:
      return true;
  }
}

/// As of a container that is meant for CPUs, on a machine that has GPUs.
void TellOfNoDevices(Findings* findings) {
  findings->Warn("device_nodes",
                 {"there is an NVIDIA driver, but no /dev/nvidia0: programs see no GPU",
                  "where a job is to use the GPUs of this machine it cannot",
                  "docker run --gpus all; Kubernetes: resources.limits nvidia.com/gpu; Slurm: "
                  "--gpus-per-node; on the machine itself `nvidia-modprobe`"});
}

/// GPUs that another driver has, or none.
void TellOfNoDriver(const GpuFacts& facts, Findings* findings) {
  const std::string drivers = absl::StrJoin(facts.bus_drivers, ", ");
  const std::string found = absl::StrCat(
      facts.on_bus == 1 ? "an NVIDIA GPU is" : absl::StrCat(facts.on_bus, " NVIDIA GPUs are"),
      " on the PCI bus, and NVIDIA's driver is not loaded",
      drivers.empty() ? "" : absl::StrCat(" (", drivers, " is)"));
  if (absl::StrContains(drivers, "vfio")) {
    findings->Warn("driver", {found, "they are kept for virtual machines: programs here see none",
                              "nothing, if that is so meant; else unbind them from vfio-pci"});
  } else if (absl::StrContains(drivers, "nouveau")) {
    findings->Warn("driver", {found, "nouveau shows pictures, and knows no CUDA: programs see none",
                              "nothing, if no job is to use it; else install the driver "
                              "(nvidia-driver), which puts nouveau on the blacklist, and reboot"});
  } else {
    findings->Warn("driver", {found, "programs see no GPU",
                              "`modprobe nvidia`, or install the driver (nvidia-driver); in a "
                              "container this is the host's business"});
  }
}

void CheckDeviceNodes(const GpuFacts& facts, Findings* findings) {
  if (!facts.has_control_node) {
    findings->Problem(
        "device_nodes",
        {"there is an NVIDIA driver, but no /dev/nvidiactl", "programs cannot open the GPUs",
         "docker run --gpus all; on the machine itself `nvidia-modprobe`"});
  } else if (!facts.has_uvm_node) {
    findings->Problem("device_nodes",
                      {"there is no /dev/nvidia-uvm", "CUDA fails with 'unknown error'",
                       "`nvidia-modprobe -u -c=0` on the machine"});
  } else {
    findings->Ok("device_nodes", absl::StrCat(facts.device_nodes, " NVIDIA devices in /dev"));
  }
}

}  // namespace

std::vector<Finding> CheckGpus(const GpuFacts& facts) {
  Findings findings(CheckGroup::kGpus);
  if (!facts.has_driver && facts.device_nodes == 0) {
    if (facts.on_bus > 0) {
      TellOfNoDriver(facts, &findings);
    } else {
      findings.Ok("driver", facts.amd > 0 ? absl::StrCat(facts.amd, " AMD GPUs")
                                          : "there is no GPU: workers train on CPUs");
    }
    return findings.Take();
  }
  if (facts.device_nodes == 0) {
    TellOfNoDevices(&findings);
    return findings.Take();
  }
  if (CheckDriver(facts, &findings)) {
    CheckAllGpus(facts, &findings);
    CheckEachGpu(facts, &findings);
  }
  CheckDeviceNodes(facts, &findings);
  return findings.Take();
}

}  // namespace fsdprun::doctor
