#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

// Note [Pickle without execution]
// A pickle is a program: REDUCE calls a function, GLOBAL imports a module. This reader calls and
// imports nothing. Calls, objects and persistent ids become plain nodes, a global is a pair of
// names that must be on the caller's list, and the code that reads the nodes accepts only the
// shapes that it knows. Nodes refer to each other by index, so a hostile file may build cycles and
// shared subtrees without a leak; readers that recurse have a budget.

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kUInt,  // above 2^63 - 1; `integer` holds the bits
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,          // items: key, value, key, value, ...
  kGlobal,        // text: module, name
  kReduce,        // items: callable, arguments[, state]
  kObject,        // items: class, arguments[, state]
  kPersistentId,  // items: id
};

/// Name of a kind for messages: "a string".
const char* kind_name(PickleKind kind);

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  int64_t integer = 0;
  double real = 0;
  std::string_view text;  // into the input, which must outlive the node
  std::string_view name;
  std::vector<uint32_t> items;
};

/// A Python object that a pickle may name.
struct PickleGlobal {
  std::string_view module;
  std::string_view name;
  bool operator==(const PickleGlobal&) const = default;
};

/// A decoded pickle. Views point into the input.
class PickleTree {
 public:
  const PickleNode& root() const { return nodes_[root_]; }
  const PickleNode& at(uint32_t index) const { return nodes_[index]; }
  const PickleNode& item(const PickleNode& node, size_t position) const {
    return nodes_[node.items[position]];
  }
  size_t size() const { return nodes_.size(); }

 private:
  friend class PickleMachine;
  std::deque<PickleNode> nodes_;
  uint32_t root_ = 0;
};

/// Decodes one pickle of protocol 2 to 5. Time and memory are linear in the size of `input`.
/// Errors: Error starting with `what` for anything that is truncated, out of the known opcodes,
/// over a bound, or names a global that is not in `allowed`.
PickleTree read_pickle(std::string_view input, std::span<const PickleGlobal> allowed,
                       const std::string& what);

}  // namespace fsdp::archive
