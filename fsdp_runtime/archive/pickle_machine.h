#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fsdp_runtime/archive/pickle_input.h"
#include "fsdp_runtime/archive/pickle_reader.h"

namespace fsdp::archive {

/// The pickle stack machine: stack, marks and memo, and what each opcode does to them. Values are
/// nodes of the tree, referred to by index. Errors: Error, thrown by PickleInput::fail().
class PickleMachine {
 public:
  /// Both must outlive the object.
  PickleMachine(const PickleInput& input, std::span<const PickleGlobal> allowed)
      : input_(input), allowed_(allowed) {}

  /// A new value on top of the stack. The reference is valid until finish().
  PickleNode& push(PickleKind kind);
  uint32_t pop();
  std::vector<uint32_t> pop_count(size_t count);

  void mark() { marks_.push_back(stack_.size()); }
  /// Takes the values above the newest mark, and the mark.
  std::vector<uint32_t> pop_to_mark();

  /// Adds `items` to the list or dict on top.
  void extend(PickleKind kind, const std::vector<uint32_t>& items);
  void global(std::string_view module, std::string_view name);
  /// A global whose module and name are on the stack.
  void stack_global();
  /// Makes a node of `kind` of a callable and its arguments; nothing is called.
  void call(PickleKind kind);
  /// Gives the state on top to the object below it. That of a dict, which is an OrderedDict's
  /// attributes (`_metadata` of a module's state dict), is dropped.
  void build();

  void put(uint64_t index);
  void put_next() { put(memo_.size()); }
  void get(uint64_t index);

  /// The tree under the one value that is left. No other method may be called afterwards.
  PickleTree finish();

 private:
  /// An opcode without a mark may only take values above the newest mark.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  PickleNode& top();

  const PickleInput& input_;
  std::span<const PickleGlobal> allowed_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
  PickleTree tree_;
};

}  // namespace fsdp::archive
