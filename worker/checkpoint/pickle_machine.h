#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "worker/checkpoint/pickle_input.h"
#include "worker/checkpoint/pickle_reader.h"

namespace fsdprun::worker::checkpoint {

/// The pickle stack machine: stack, marks and memo, and what each opcode does to them. Values are
/// nodes of the tree, referred to by index. Errors: CheckpointError, thrown by PickleInput::Fail.
class PickleMachine {
 public:
  /// Both must outlive the object.
  PickleMachine(const PickleInput& input, std::span<const PickleGlobal> allowed)
      : input_(input), allowed_(allowed) {}

  /// A new value on top of the stack. The reference is valid until Finish.
  PickleNode& Push(PickleKind kind);
  uint32_t Pop();
  std::vector<uint32_t> PopCount(size_t count);

  void Mark() { marks_.push_back(stack_.size()); }
  /// Takes the values above the newest mark, and the mark.
  std::vector<uint32_t> PopToMark();

  /// Adds `items` to the list or dict on top.
  void Extend(PickleKind kind, const std::vector<uint32_t>& items);
  void Global(std::string_view module, std::string_view name);
  /// A global whose module and name are on the stack.
  void StackGlobal();
  /// Makes a node of `kind` of a callable and its arguments; nothing is called.
  void Call(PickleKind kind);
  /// Gives the state on top to the object below it.
  void Build();

  void Put(uint64_t index);
  void PutNext() { Put(memo_.size()); }
  void Get(uint64_t index);

  /// The tree under the one value that is left. No other method may be called afterwards.
  PickleTree Finish();

 private:
  /// An opcode without a mark may only take values above the newest mark.
  size_t Available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  PickleNode& Top();

  const PickleInput& input_;
  std::span<const PickleGlobal> allowed_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
  PickleTree tree_;
};

}  // namespace fsdprun::worker::checkpoint
