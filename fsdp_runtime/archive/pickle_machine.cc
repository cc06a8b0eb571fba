#include "fsdp_runtime/archive/pickle_machine.h"

#include <algorithm>
#include <string>
#include <utility>

namespace fsdp::archive {
namespace {

// One byte of the stream may become a node of about a hundred bytes.
constexpr size_t kNodesMax = size_t{1} << 25;

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

}  // namespace

PickleNode& PickleMachine::push(PickleKind kind) {
  if (tree_.nodes_.size() == kNodesMax) {
    input_.fail("has more than " + std::to_string(kNodesMax) + " values");
  }
  tree_.nodes_.emplace_back();
  tree_.nodes_.back().kind = kind;
  stack_.push_back(static_cast<uint32_t>(tree_.nodes_.size() - 1));
  return tree_.nodes_.back();
}

uint32_t PickleMachine::pop() {
  if (available() == 0) {
    input_.fail("takes a value from an empty stack");
  }
  const uint32_t top = stack_.back();
  stack_.pop_back();
  return top;
}

PickleNode& PickleMachine::top() {
  if (available() == 0) {
    input_.fail("takes a value from an empty stack");
  }
  return tree_.nodes_[stack_.back()];
}

std::vector<uint32_t> PickleMachine::pop_to_mark() {
  if (marks_.empty()) {
    input_.fail("lacks a mark");
  }
  std::vector<uint32_t> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

std::vector<uint32_t> PickleMachine::pop_count(size_t count) {
  if (available() < count) {
    input_.fail("takes a value from an empty stack");
  }
  std::vector<uint32_t> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
  stack_.resize(stack_.size() - count);
  return items;
}

void PickleMachine::extend(PickleKind kind, const std::vector<uint32_t>& items) {
  PickleNode& target = top();
  if (target.kind != kind || (kind == PickleKind::kDict && items.size() % 2 != 0)) {
    input_.fail(std::string("adds items to ") + kind_name(target.kind));
  }
  target.items.insert(target.items.end(), items.begin(), items.end());
}

void PickleMachine::global(std::string_view module, std::string_view name) {
  if (std::find(allowed_.begin(), allowed_.end(), PickleGlobal{module, name}) == allowed_.end()) {
    input_.fail("names the Python object " + printable(module) + "." + printable(name) +
                ", which has no place in a checkpoint or state dict; it was not resolved, "
                "and the file is refused");
  }
  PickleNode& node = push(PickleKind::kGlobal);
  node.text = module;
  node.name = name;
}

void PickleMachine::stack_global() {
  const std::vector<uint32_t> names = pop_count(2);
  const PickleNode& module = tree_.at(names[0]);
  const PickleNode& name = tree_.at(names[1]);
  if (module.kind != PickleKind::kString || name.kind != PickleKind::kString) {
    input_.fail("has a global whose name is no string");
  }
  global(module.text, name.text);
}

void PickleMachine::call(PickleKind kind) {
  std::vector<uint32_t> items = pop_count(2);
  const PickleNode& callable = tree_.at(items[0]);
  const PickleNode& arguments = tree_.at(items[1]);
  if (callable.kind != PickleKind::kGlobal || arguments.kind != PickleKind::kTuple) {
    input_.fail("calls something that is not a named function with a tuple");
  }
  if (kind == PickleKind::kReduce && callable.name == "OrderedDict" && arguments.items.empty()) {
    push(PickleKind::kDict);  // filled by SETITEMS like a plain dict
    return;
  }
  push(kind).items = std::move(items);
}

void PickleMachine::build() {
  const uint32_t state = pop();
  PickleNode& target = top();
  if (target.kind == PickleKind::kDict) {
    return;
  }
  if ((target.kind != PickleKind::kObject && target.kind != PickleKind::kReduce) ||
      target.items.size() != 2) {
    input_.fail(std::string("gives a state to ") + kind_name(target.kind));
  }
  target.items.push_back(state);
}

void PickleMachine::put(uint64_t index) {
  // Every memo entry takes at least one byte, so no pickler writes a larger index.
  if (index > input_.size()) {
    input_.fail("has the memo index " + std::to_string(index) + ", over the bound of its own size");
  }
  top();
  memo_[index] = stack_.back();
}

void PickleMachine::get(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) {
    input_.fail("refers to the memo index " + std::to_string(index) + ", which is not set");
  }
  stack_.push_back(found->second);
}

PickleTree PickleMachine::finish() {
  if (stack_.size() != 1 || !marks_.empty()) {
    input_.fail("does not end with one value");
  }
  tree_.root_ = stack_.back();
  return std::move(tree_);
}

}  // namespace fsdp::archive
