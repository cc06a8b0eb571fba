#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fsdpctl/doctor/machine/nvml.h"
#include "fsdpctl/doctor/machine/read_facts.h"
#include "fsdpctl/doctor/machine/system_files.h"
#include "launcher/run/devices.h"

namespace fsdprun::doctor {
namespace {

constexpr char kNvidiaVendor[] = "0x10de";
/// Of PCI devices: displays, of which GPUs without an outlet are a kind.
constexpr char kDisplayClass[] = "0x03";

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

int NvidiaOnBus(const std::string& root) {
  const std::string folder = root + "/sys/bus/pci/devices";
  int count = 0;
  for (const std::string& name : NamesIn(folder)) {
    const std::string device = absl::StrCat(folder, "/", name);
    count += TextOf(device + "/vendor") == kNvidiaVendor &&
             absl::StartsWith(TextOf(device + "/class"), kDisplayClass);
  }
  return count;
}

int NvidiaNodes(const std::string& root) {
  const std::vector<std::string> names = NamesIn(root + "/dev");
  return static_cast<int>(std::count_if(names.begin(), names.end(), [](absl::string_view name) {
    int number = 0;
    return absl::ConsumePrefix(&name, "nvidia") && absl::SimpleAtoi(name, &number);
  }));
}

std::vector<RdmaPort> RdmaPorts(const std::string& root) {
  const std::string folder = root + "/sys/class/infiniband";
  std::vector<RdmaPort> ports;
  for (const std::string& device : NamesIn(folder)) {
    const std::string below = absl::StrCat(folder, "/", device, "/ports");
    for (const std::string& name : NamesIn(below)) {
      const std::string port = absl::StrCat(below, "/", name);
      int number = 1;
      if (absl::SimpleAtoi(name, &number)) {
        ports.push_back({device, number, TextOf(port + "/state"), TextOf(port + "/rate"),
                         TextOf(port + "/link_layer")});
      }
    }
  }
  return ports;
}

}  // namespace

GpuFacts ReadGpus(const std::string& root, const Environment& environment) {
  GpuFacts facts{.on_bus = NvidiaOnBus(root),
                 .has_driver = Exists(root + "/proc/driver/nvidia/version"),
                 .device_nodes = NvidiaNodes(root),
                 .has_control_node = Exists(root + "/dev/nvidiactl"),
                 .has_uvm_node = Exists(root + "/dev/nvidia-uvm")};
  if (const auto visible = environment.find("CUDA_VISIBLE_DEVICES"); visible != environment.end()) {
    facts.visible = visible->second;
  }
  if (facts.has_driver || facts.device_nodes > 0) {
    AskNvml(&facts);
  } else {
    facts.amd = CountGpus(root, environment);
  }
  return facts;
}

NcclFacts ReadNccl(const std::string& root, const Environment& environment) {
  return {.version = NcclVersion(),
          .environment = environment,
          .interfaces = ReadInterfaces(),
          .rdma = RdmaPorts(root),
          .has_rdma_nodes = Exists(root + "/dev/infiniband/uverbs0"),
          .has_gpus = NvidiaNodes(root) > 0};
}

}  // namespace fsdprun::doctor
