#include "launcher/run/worker_cpus.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/run/cpu_list.h"
#include "launcher/run/devices.h"

namespace fsdprun {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The lowest number of the list in a file.
std::optional<int> LowestIn(const std::string& path) {
  const std::optional<std::vector<int>> cpus = ParseCpuList(ReadText(path));
  return cpus.has_value() && !cpus->empty() ? std::optional(cpus->front()) : std::nullopt;
}

std::optional<int> NumberIn(const std::string& path) {
  int number = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadText(path)), &number)
             ? std::optional(number)
             : std::nullopt;
}

/// NUMA node by CPU, of those that are on one.
std::map<int, int> ReadNodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node";
  std::map<int, int> nodes;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view number = name;
    int node = 0;
    if (!absl::ConsumePrefix(&number, "node") || !absl::SimpleAtoi(number, &node)) {
      continue;
    }
    for (const int cpu :
         ParseCpuList(ReadText(it->path().string() + "/cpulist")).value_or(std::vector<int>())) {
      nodes[cpu] = node;
    }
  }
  return nodes;
}

/// The lowest CPU that shares the CPU's largest cache for data.
std::optional<int> ReadComplex(const std::string& cpu_folder) {
  std::optional<int> lowest;
  int level = 0;
  for (int index = 0;; ++index) {
    const std::string cache = absl::StrCat(cpu_folder, "/cache/index", index);
    const std::optional<int> this_level = NumberIn(cache + "/level");
    if (!this_level.has_value()) {
      return lowest;
    }
    const std::string text = ReadText(cache + "/type");
    const absl::string_view type = absl::StripAsciiWhitespace(text);
    if ((type == "Unified" || type == "Data") && *this_level > level) {
      level = *this_level;
      lowest = LowestIn(cache + "/shared_cpu_list");
    }
  }
}

}  // namespace

std::string MachineRoot(const Environment& environment) {
  const auto it = environment.find("FSDPRUN_TEST_ROOT");
  return it == environment.end() ? "" : it->second;
}

std::vector<int> UsableCpus(const std::string& root) {
  if (!root.empty()) {
    for (const absl::string_view line :
         absl::StrSplit(ReadText(root + "/proc/self/status"), '\n')) {
      absl::string_view list = line;
      if (absl::ConsumePrefix(&list, "Cpus_allowed_list:")) {
        return ParseCpuList(list).value_or(std::vector<int>());
      }
    }
    return {};
  }
  // The kernel refuses a mask that is smaller than its own.
  constexpr size_t kLargestMask = 65536 / 8;
  std::vector<int> cpus;
  for (size_t bytes = sizeof(cpu_set_t); bytes <= kLargestMask; bytes *= 2) {
    std::vector<cpu_set_t> mask(bytes / sizeof(cpu_set_t));
    if (::sched_getaffinity(0, bytes, mask.data()) == 0) {
      for (int cpu = 0; cpu < static_cast<int>(8 * bytes); ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask.data())) {
          cpus.push_back(cpu);
        }
      }
      break;
    }
  }
  return cpus;
}

CpuTopology ReadTopology(const std::string& root, const std::vector<int>& usable) {
  const std::map<int, int> nodes = ReadNodes(root);
  CpuTopology topology;
  for (const int cpu : usable) {
    const std::string folder = absl::StrCat(root, "/sys/devices/system/cpu/cpu", cpu);
    const auto node = nodes.find(cpu);
    CpuPlace& place = topology[cpu];
    place.node = node == nodes.end() ? 0 : node->second;
    place.socket = NumberIn(folder + "/topology/physical_package_id").value_or(0);
    place.core = LowestIn(folder + "/topology/thread_siblings_list").value_or(cpu);
    place.complex = ReadComplex(folder).value_or(-1);
  }
  return topology;
}

absl::StatusOr<std::vector<std::vector<int>>> WorkerCpus(const LaunchPlan& plan,
                                                         const Environment& environment) {
  if (plan.numa_binding == NumaBinding::kNone) {
    return std::vector<std::vector<int>>();
  }
  const std::string root = MachineRoot(environment);
  const absl::StatusOr<std::vector<int>> gpu_nodes = NumaNodesOfGpus(root, environment);
  if (!gpu_nodes.ok()) {
    return absl::OutOfRangeError(absl::StrCat("--numa-binding ", NumaBindingName(plan.numa_binding),
                                              ": ", gpu_nodes.status().message()));
  }
  return BindCpus(ReadTopology(root, UsableCpus(root)), plan.numa_binding, plan.nproc_per_node,
                  *gpu_nodes);
}

std::string DescribeWorkerCpus(const std::vector<std::vector<int>>& worker_cpus) {
  std::string text;
  for (const std::vector<int>& cpus : worker_cpus) {
    absl::StrAppend(&text, text.empty() ? "worker_cpus: " : " ", CpuListText(cpus));
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace fsdprun
