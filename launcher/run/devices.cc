#include "launcher/run/devices.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr char kCudaList[] = "CUDA_VISIBLE_DEVICES";
constexpr char kIntelVendor[] = "0x8086";
/// Where Intel's processors have theirs.
constexpr char kIntegratedGpu[] = "0000:00:02.0";

struct Gpu {
  std::string pci_address;
  std::string uuid;
};

/// Names in a folder, ascending; none if it cannot be read.
std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// What follows `key` on its line; empty if there is no such line.
std::string FieldOf(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, key)) {
      return std::string(absl::StripAsciiWhitespace(line));
    }
  }
  return "";
}

const std::string* Variable(const Environment& environment, const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? nullptr : &it->second;
}

/// `prefix` and a number.
bool IsNumbered(absl::string_view name, absl::string_view prefix) {
  return absl::ConsumePrefix(&name, prefix) && !name.empty() &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

int CountNumbered(const std::string& folder, absl::string_view prefix) {
  const std::vector<std::string> names = NamesIn(folder);
  return static_cast<int>(std::count_if(
      names.begin(), names.end(), [prefix](const auto& name) { return IsNumbered(name, prefix); }));
}

int CountNvidia(const std::string& root) { return CountNumbered(root + "/dev", "nvidia"); }

/// By PCI address, as CUDA numbers GPUs of one kind. A container may show only some of them in
/// /dev.
std::vector<Gpu> NvidiaGpus(const std::string& root) {
  const std::string folder = root + "/proc/driver/nvidia/gpus";
  std::vector<Gpu> gpus;
  for (const std::string& address : NamesIn(folder)) {
    const std::string text = TextOf(absl::StrCat(folder, "/", address, "/information"));
    const std::string minor = FieldOf(text, "Device Minor:");
    if (minor.empty() || std::filesystem::exists(absl::StrCat(root, "/dev/nvidia", minor))) {
      gpus.push_back({absl::AsciiStrToLower(address), FieldOf(text, "GPU UUID:")});
    }
  }
  return gpus;
}

uint64_t NumberOf(absl::string_view text, absl::string_view key) {
  uint64_t number = 0;
  return absl::SimpleAtoi(FieldOf(text, key), &number) ? number : 0;
}

/// Nodes of ROCm's topology with SIMD units, by number; the others are CPUs.
std::vector<Gpu> AmdGpus(const std::string& root) {
  const std::string folder = root + "/sys/class/kfd/kfd/topology/nodes";
  std::map<int, Gpu> by_number;
  for (const std::string& name : NamesIn(folder)) {
    const std::string text = TextOf(absl::StrCat(folder, "/", name, "/properties"));
    int number = 0;
    if (absl::SimpleAtoi(name, &number) && NumberOf(text, "simd_count ") > 0) {
      const uint64_t place = NumberOf(text, "location_id ");
      by_number[number] = {
          .pci_address = absl::StrFormat("%04x:%02x:%02x.%x", NumberOf(text, "domain "),
                                         place >> 8 & 0xff, place >> 3 & 0x1f, place & 7),
          .uuid = absl::StrFormat("GPU-%x", NumberOf(text, "unique_id "))};
    }
  }
  std::vector<Gpu> gpus;
  gpus.reserve(by_number.size());
  for (auto& [number, gpu] : by_number) {
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

/// The lists that make GPUs of the kind visible, those of lower layers first.
std::vector<std::string> VisibleLists(const Environment& environment, bool is_amd) {
  std::vector<std::string> lists;
  if (!is_amd) {
    if (const std::string* list = Variable(environment, kCudaList)) {
      lists.push_back(*list);
    }
    return lists;
  }
  if (const std::string* list = Variable(environment, "ROCR_VISIBLE_DEVICES")) {
    lists.push_back(*list);
  }
  for (const char* name : {"HIP_VISIBLE_DEVICES", kCudaList}) {
    if (const std::string* list = Variable(environment, name)) {
      lists.push_back(*list);
      break;
    }
  }
  return lists;
}

/// The GPUs that one list shows, in its order.
absl::StatusOr<std::vector<Gpu>> Select(const std::vector<Gpu>& gpus, const std::string& list) {
  std::vector<Gpu> selected;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int index = 0;
    if (absl::SimpleAtoi(entry, &index)) {
      if (index < 0 || static_cast<size_t>(index) >= gpus.size()) {
        break;
      }
      selected.push_back(gpus[static_cast<size_t>(index)]);
      continue;
    }
    if (entry.empty()) {
      break;
    }
    const auto it = std::find_if(gpus.begin(), gpus.end(), [entry](const Gpu& gpu) {
      return absl::StartsWith(gpu.uuid, entry);
    });
    if (it == gpus.end()) {
      return absl::OutOfRangeError(absl::StrCat("cannot tell which GPU '", entry, "' of ",
                                                kCudaList, " is; give numbers or GPU UUIDs"));
    }
    selected.push_back(*it);
  }
  return selected;
}

absl::StatusOr<int> NodeOf(const std::string& root, const Gpu& gpu) {
  const std::string path =
      absl::StrCat(root, "/sys/bus/pci/devices/", gpu.pci_address, "/numa_node");
  int node = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(TextOf(path)), &node)) {
    return absl::OutOfRangeError(
        absl::StrCat("cannot read ", path, ", which tells where a GPU is"));
  }
  return std::max(node, 0);  // -1 where the machine has only one.
}

}  // namespace

int VisibleGpus(int devices, absl::string_view list) {
  int visible = 0;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int index = 0;
    if (entry.empty() || (absl::SimpleAtoi(entry, &index) && (index < 0 || index >= devices))) {
      break;
    }
    ++visible;
  }
  return devices == 0 ? 0 : visible;
}

int CountGpus(const std::string& root, const Environment& environment) {
  const int nvidia = CountNvidia(root);
  int gpus = nvidia > 0 ? nvidia : static_cast<int>(AmdGpus(root).size());
  for (const std::string& list : VisibleLists(environment, nvidia == 0)) {
    gpus = VisibleGpus(gpus, list);
  }
  return gpus;
}

int CountIntelGpus(const std::string& root, const Environment& environment, IntelGpus which) {
  const std::string folder = root + "/sys/class/drm";
  int gpus = 0;
  for (const std::string& name : NamesIn(folder)) {
    const std::string vendor = TextOf(absl::StrCat(folder, "/", name, "/device/vendor"));
    std::error_code error;
    const auto address = std::filesystem::read_symlink(folder + "/" + name + "/device", error);
    const bool is_meant = which == IntelGpus::kAll || address.filename() != kIntegratedGpu;
    gpus += is_meant && IsNumbered(name, "renderD") &&
            absl::StripAsciiWhitespace(vendor) == kIntelVendor;
  }
  const std::string* mask = Variable(environment, "ZE_AFFINITY_MASK");
  return mask == nullptr || mask->empty() ? gpus : VisibleGpus(gpus, *mask);
}

absl::StatusOr<std::vector<int>> NumaNodesOfGpus(const std::string& root,
                                                 const Environment& environment) {
  if (CountGpus(root, environment) == 0) {
    return std::vector<int>();
  }
  const bool is_amd = CountNvidia(root) == 0;
  std::vector<Gpu> gpus = is_amd ? AmdGpus(root) : NvidiaGpus(root);
  if (gpus.empty()) {
    return absl::OutOfRangeError(
        "cannot tell where the GPUs are: /proc/driver/nvidia/gpus shows none");
  }
  for (const std::string& list : VisibleLists(environment, is_amd)) {
    ASSIGN_OR_RETURN(gpus, Select(gpus, list));
  }
  std::vector<int> nodes;
  for (const Gpu& gpu : gpus) {
    ASSIGN_OR_RETURN(const int node, NodeOf(root, gpu));
    nodes.push_back(node);
  }
  return nodes;
}

}  // namespace fsdprun
