#include "launcher/run/numa_binding.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

using Cpus = std::vector<int>;

/// A worker's turn among the GPUs, or workers without GPUs, of its node.
struct Turn {
  int node = 0;
  int index = 0;
  int count = 1;
};

absl::Status BindingError(NumaBinding binding, absl::string_view problem) {
  return absl::OutOfRangeError(
      absl::StrCat("--numa-binding ", NumaBindingName(binding), ": ", problem));
}

/// The CPUs on a node, grouped by a field of their place.
std::map<int, Cpus> GroupsOnNode(const CpuTopology& topology, int node, int CpuPlace::*field) {
  std::map<int, Cpus> groups;
  for (const auto& [cpu, place] : topology) {
    if (place.node == node) {
      groups[place.*field].push_back(cpu);
    }
  }
  return groups;
}

/// Without GPUs: worker n of N begins at core n/N of all, counted from node to node.
std::vector<int> NodesWithoutGpus(const CpuTopology& topology, int workers) {
  std::set<std::pair<int, int>> cores;  // With the node first.
  for (const auto& [cpu, place] : topology) {
    cores.emplace(place.node, place.core);
  }
  const std::vector<std::pair<int, int>> in_order(cores.begin(), cores.end());
  std::vector<int> nodes;
  for (int worker = 0; worker < workers; ++worker) {
    const size_t begin =
        in_order.size() * static_cast<size_t>(worker) / static_cast<size_t>(workers);
    nodes.push_back(in_order[begin].first);
  }
  return nodes;
}

Cpus OfNode(const CpuTopology& topology, int node) {
  Cpus cpus;
  for (const auto& [cpu, place] : topology) {
    if (place.node == node) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

/// Of all nodes whose lowest CPU is in the socket of this node's lowest.
Cpus OfSocket(const CpuTopology& topology, int node) {
  std::map<int, int> socket_of_node;
  for (const auto& [cpu, place] : topology) {
    socket_of_node.emplace(place.node, place.socket);
  }
  Cpus cpus;
  for (const auto& [cpu, place] : topology) {
    if (socket_of_node.at(place.node) == socket_of_node.at(node)) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

/// One of `turn.count` equal shares of the node's cores; the first ones get what is left.
Cpus OfExclusiveCores(const CpuTopology& topology, const Turn& turn) {
  const std::map<int, Cpus> cores = GroupsOnNode(topology, turn.node, &CpuPlace::core);
  const int share = static_cast<int>(cores.size()) / turn.count;
  const int left = static_cast<int>(cores.size()) % turn.count;
  const int begin = turn.index * share + std::min(turn.index, left);
  const int end = begin + share + (turn.index < left ? 1 : 0);
  Cpus cpus;
  for (auto core = std::next(cores.begin(), begin); core != std::next(cores.begin(), end); ++core) {
    cpus.insert(cpus.end(), core->second.begin(), core->second.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

/// The core complexes in turn, those with more usable CPUs first.
Cpus OfCoreComplex(const CpuTopology& topology, const Turn& turn) {
  const std::map<int, Cpus> groups = GroupsOnNode(topology, turn.node, &CpuPlace::complex);
  std::vector<Cpus> complexes;
  complexes.reserve(groups.size());
  for (const auto& [lowest, cpus] : groups) {
    complexes.push_back(cpus);
  }
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const Cpus& a, const Cpus& b) { return a.size() > b.size(); });
  return complexes[static_cast<size_t>(turn.index) % complexes.size()];
}

Cpus CpusOf(const CpuTopology& topology, NumaBinding binding, const Turn& turn) {
  switch (binding) {
    case NumaBinding::kNone:
      break;
    case NumaBinding::kNode:
      return OfNode(topology, turn.node);
    case NumaBinding::kSocket:
      return OfSocket(topology, turn.node);
    case NumaBinding::kExclusive:
      return OfExclusiveCores(topology, turn);
    case NumaBinding::kCoreComplex:
      return OfCoreComplex(topology, turn);
  }
  return {};
}

}  // namespace

absl::StatusOr<std::vector<Cpus>> BindCpus(const CpuTopology& topology, NumaBinding binding,
                                           int workers, const std::vector<int>& gpu_nodes) {
  if (topology.empty()) {
    return BindingError(binding, "no usable CPU was found");
  }
  if (!gpu_nodes.empty() && static_cast<size_t>(workers) > gpu_nodes.size()) {
    return BindingError(
        binding, absl::StrCat("local rank ", gpu_nodes.size(), " has no GPU: ", gpu_nodes.size(),
                              " are visible for ", workers, " workers"));
  }
  const std::vector<int> nodes =
      gpu_nodes.empty() ? NodesWithoutGpus(topology, workers) : gpu_nodes;
  std::vector<Cpus> result;
  for (int worker = 0; worker < workers; ++worker) {
    const int node = nodes[static_cast<size_t>(worker)];
    const int cores = static_cast<int>(GroupsOnNode(topology, node, &CpuPlace::core).size());
    if (cores == 0) {
      return BindingError(binding, absl::StrCat("GPU ", worker, " is on NUMA node ", node,
                                                ", of which this process may use no CPU; change "
                                                "its CPU affinity or cpuset"));
    }
    const int index = static_cast<int>(std::count(nodes.begin(), nodes.begin() + worker, node));
    const int count = static_cast<int>(std::count(nodes.begin(), nodes.end(), node));
    if (binding == NumaBinding::kExclusive && cores < count) {
      return BindingError(
          binding, absl::StrCat("NUMA node ", node, " has ", cores, " usable cores for ", count,
                                gpu_nodes.empty() ? " workers" : " GPUs",
                                "; give fewer or another binding"));
    }
    result.push_back(CpusOf(topology, binding, {node, index, count}));
  }
  return result;
}

}  // namespace fsdprun
