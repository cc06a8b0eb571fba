#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp::plan {

/// A parameter as a module has registered it.
struct WrapParam {
  std::string name;
  size_t id = 0;  // the same wherever the same tensor is registered
  int64_t numel = 0;
};

/// A module in a tree, which begins with its root.
struct WrapNode {
  std::string name;               // from the root, whose own is ""
  std::vector<WrapParam> params;  // its own, not those of its children
  std::vector<size_t> children;   // in registration order; each module is the child of one
  bool has_forward = true;
};

/// What a policy says of a module with `numel` parameters at and below it.
struct WrapRule {
  /// Whether units are looked for below it; if not, it is none itself.
  std::function<bool(size_t node, int64_t numel)> descends;
  /// Whether it is a unit. `numel`: without those of units below it. Not asked about the root, nor
  /// about modules without forward, which nobody could call as a unit.
  std::function<bool(size_t node, int64_t numel)> wraps;
};

struct WrapUnit {
  size_t node = 0;
  int64_t numel = 0;  // of the parameters that it takes, each once
  bool operator==(const WrapUnit&) const = default;
};

/// The modules that become units, those below before those around them, the root last.
std::vector<WrapUnit> choose_units(const std::vector<WrapNode>& tree, const WrapRule& rule);

/// One parameter that two units would take.
struct SplitParam {
  size_t unit = 0;  // nodes
  size_t other = 0;
  std::string name;  // from the root, in `unit` and in `other`
  std::string other_name;
};

/// All of them, in the order of the tree.
std::vector<SplitParam> split_params(const std::vector<WrapNode>& tree,
                                     const std::vector<WrapUnit>& units);

}  // namespace fsdp::plan
