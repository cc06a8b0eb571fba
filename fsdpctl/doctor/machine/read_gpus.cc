#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

void LookAtBus(const std::string& root, GpuFacts* facts) {
  const std::string folder = root + "/sys/bus/pci/devices";
  std::set<std::string> drivers;
  for (const std::string& name : NamesIn(folder)) {
    const std::string device = absl::StrCat(folder, "/", name);
    if (TextOf(device + "/vendor") == kNvidiaVendor &&
        absl::StartsWith(TextOf(device + "/class"), kDisplayClass)) {
      ++facts->on_bus;
      std::error_code error;
      const std::filesystem::path driver =
          std::filesystem::read_symlink(device + "/driver", error).filename();
      if (!error) {
        drivers.insert(driver.string());
      }
    }
  }
  facts->bus_drivers.assign(drivers.begin(), drivers.end());
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
  GpuFacts facts{.has_driver = Exists(root + "/proc/driver/nvidia/version"),
                 .device_nodes = NvidiaNodes(root),
                 .has_control_node = Exists(root + "/dev/nvidiactl"),
                 .has_uvm_node = Exists(root + "/dev/nvidia-uvm")};
  LookAtBus(root, &facts);
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
          .has_rdma_nodes = HasRdmaNodes(root),
          .has_gpus = NvidiaNodes(root) > 0};
}

}  // namespace fsdprun::doctor
