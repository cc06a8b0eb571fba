#include "fsdp_runtime/plan/wrap_plan.h"

#include <map>
#include <set>

namespace fsdp::plan {
namespace {

constexpr size_t kRoot = 0;

int64_t add_params(const std::vector<WrapNode>& tree, size_t node, std::set<size_t>& seen) {
  int64_t numel = 0;
  for (const WrapParam& param : tree[node].params) {
    numel += seen.insert(param.id).second ? param.numel : 0;
  }
  for (const size_t child : tree[node].children) {
    numel += add_params(tree, child, seen);
  }
  return numel;
}

/// Returns how many parameters at and below `node` are in units.
int64_t choose_below(const std::vector<WrapNode>& tree, size_t node, const WrapRule& rule,
                     std::vector<WrapUnit>& units) {
  std::set<size_t> seen;
  const int64_t numel = add_params(tree, node, seen);
  if (!rule.descends(node, numel)) {
    return 0;
  }
  int64_t taken = 0;
  for (const size_t child : tree[node].children) {
    taken += choose_below(tree, child, rule, units);
  }
  if (node == kRoot || !tree[node].has_forward || !rule.wraps(node, numel - taken)) {
    return taken;
  }
  units.push_back({node, 0});
  return numel;
}

/// By node, the unit that takes its parameters.
void set_owners(const std::vector<WrapNode>& tree, size_t node, size_t owner,
                const std::set<size_t>& units, std::vector<size_t>& owners) {
  owners[node] = units.contains(node) ? node : owner;
  for (const size_t child : tree[node].children) {
    set_owners(tree, child, owners[node], units, owners);
  }
}

std::vector<size_t> owners_of(const std::vector<WrapNode>& tree,
                              const std::vector<WrapUnit>& units) {
  std::set<size_t> nodes;
  for (const WrapUnit& unit : units) {
    nodes.insert(unit.node);
  }
  std::vector<size_t> owners(tree.size(), kRoot);
  set_owners(tree, kRoot, kRoot, nodes, owners);
  return owners;
}

std::string full_name(const WrapNode& node, const WrapParam& param) {
  return node.name.empty() ? param.name : node.name + "." + param.name;
}

}  // namespace

std::vector<WrapUnit> choose_units(const std::vector<WrapNode>& tree, const WrapRule& rule) {
  std::vector<WrapUnit> units;
  choose_below(tree, kRoot, rule, units);
  units.push_back({kRoot, 0});
  const std::vector<size_t> owners = owners_of(tree, units);
  std::map<size_t, int64_t> numel;
  std::set<size_t> seen;
  for (size_t node = 0; node < tree.size(); ++node) {
    for (const WrapParam& param : tree[node].params) {
      numel[owners[node]] += seen.insert(param.id).second ? param.numel : 0;
    }
  }
  for (WrapUnit& unit : units) {
    unit.numel = numel[unit.node];
  }
  return units;
}

std::vector<SplitParam> split_params(const std::vector<WrapNode>& tree,
                                     const std::vector<WrapUnit>& units) {
  struct First {
    size_t owner;
    std::string name;
  };
  const std::vector<size_t> owners = owners_of(tree, units);
  std::map<size_t, First> first_of;  // by id
  std::vector<SplitParam> split;
  for (size_t node = 0; node < tree.size(); ++node) {
    for (const WrapParam& param : tree[node].params) {
      const std::string name = full_name(tree[node], param);
      const auto [first, is_new] = first_of.try_emplace(param.id, First{owners[node], name});
      if (!is_new && first->second.owner != owners[node]) {
        split.push_back({first->second.owner, owners[node], first->second.name, name});
      }
    }
  }
  return split;
}

}  // namespace fsdp::plan
