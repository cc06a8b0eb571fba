#include "fsdp_runtime/src/engine/guard_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace fsdp {

// Read by the handler, at any moment, hence atomic and never freed; texts are when another range
// takes the addresses over.
struct GuardedRange::Node {
  struct Part {
    std::atomic<int64_t> begin{0};
    std::atomic<int64_t> end{0};  // not behind `begin`: free
    std::atomic<const char*> name{nullptr};
    Part* next = nullptr;
  };

  uintptr_t begin = 0;
  int64_t bytes = 0;
  std::atomic<Part*> parts{nullptr};
  Node* next = nullptr;

  // Not the handler's.
  std::vector<std::unique_ptr<char[]>> texts;  // also those that have been replaced
  bool is_used = false;                        // guarded by the mutex of all nodes
};

namespace {

using Node = GuardedRange::Node;

std::atomic<Node*> all_nodes{nullptr};
std::mutex nodes_mutex;
struct sigaction action_before;

void say(std::string_view text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

const Node* node_of(uintptr_t address) {
  for (const Node* node = all_nodes.load(std::memory_order_acquire); node != nullptr;
       node = node->next) {
    if (node->begin <= address && address - node->begin < static_cast<uintptr_t>(node->bytes)) {
      return node;
    }
  }
  return nullptr;
}

const char* name_at(const Node& node, int64_t offset) {
  for (const Node::Part* part = node.parts.load(std::memory_order_acquire); part != nullptr;
       part = part->next) {
    if (part->begin <= offset && offset < part->end) {
      return part->name;
    }
  }
  return nullptr;
}

// The instruction that faulted runs again when this returns, and faults for who was there before.
void explain_fault(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const int error = errno;  // of the code that is interrupted
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (const Node* node = node_of(address)) {
    const char* name = name_at(*node, static_cast<int64_t>(address - node->begin));
    say("fsdp: ");
    say(name != nullptr ? name : "a parameter or gradient");
    say(" was read or written that is sharded now, and not gathered. The whole of it is there only "
        "while its unit runs. Call the unit in place of module->forward(), unshard() it, or use "
        "sharded_parameters() or full_parameter().\n");
  }
  ::sigaction(SIGSEGV, &action_before, nullptr);
  if (info->si_code <= 0) {
    ::raise(SIGSEGV);  // It was sent: no instruction runs again.
  }
  errno = error;
}

void explain_faults() {
  struct sigaction action {};
  action.sa_sigaction = explain_fault;
  // A stack that overflowed is no room for a handler.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, &action_before);
}

/// One that nobody uses any more; null if there is none of this size. With the mutex held.
Node* unused_node(int64_t bytes) {
  for (Node* node = all_nodes; node != nullptr; node = node->next) {
    if (!node->is_used && node->bytes == bytes) {
      return node;
    }
  }
  return nullptr;
}

/// With the mutex held.
Node* reserve(int64_t bytes) {
  void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  if (all_nodes == nullptr) {
    explain_faults();
  }
  auto* node = new Node;
  node->begin = reinterpret_cast<uintptr_t>(mapped);
  node->bytes = bytes;
  node->next = all_nodes;
  all_nodes.store(node, std::memory_order_release);
  return node;
}

}  // namespace

GuardedRange::GuardedRange(int64_t bytes) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t wanted = std::max<int64_t>((bytes + page - 1) / page * page, page);
  std::lock_guard lock(nodes_mutex);
  node_ = unused_node(wanted);
  if (node_ == nullptr) {
    node_ = reserve(wanted);
  }
  if (node_ != nullptr) {
    node_->is_used = true;
    node_->texts.clear();
  }
}

GuardedRange::~GuardedRange() {
  if (node_ == nullptr) {
    return;
  }
  for (Node::Part* part = node_->parts; part != nullptr; part = part->next) {
    part->end = 0;
    part->begin = 0;
    part->name = nullptr;
  }
  std::lock_guard lock(nodes_mutex);
  node_->is_used = false;
}

void* GuardedRange::address() const {
  return node_ == nullptr ? nullptr : reinterpret_cast<void*>(node_->begin);
}

void GuardedRange::set_name(int64_t begin, int64_t end, const std::string& name) {
  if (node_ == nullptr || begin >= end) {
    return;
  }
  auto text = std::make_unique<char[]>(name.size() + 1);
  std::memcpy(text.get(), name.c_str(), name.size() + 1);
  Node::Part* free = nullptr;
  Node::Part* same = nullptr;
  for (Node::Part* part = node_->parts; part != nullptr; part = part->next) {
    const bool is_free = part->end <= part->begin;
    free = is_free ? part : free;
    same = !is_free && part->begin == begin ? part : same;
  }
  Node::Part* part = same != nullptr ? same : free;
  const bool is_new = part == nullptr;
  if (is_new) {
    part = new Node::Part;
    part->next = node_->parts;
  }
  part->name = text.get();
  part->begin = begin;
  part->end = end;
  if (is_new) {
    node_->parts.store(part, std::memory_order_release);
  }
  node_->texts.push_back(std::move(text));
}

}  // namespace fsdp
