#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

/// A reusable buffer with a stable address for the arena's lifetime.
struct Slot {
  at::Tensor memory;  // bytes
  int64_t bytes = 0;
  bool is_used = false;
  void* data() const { return memory.data_ptr(); }
};

/// Slots by exact size. acquire() returns the first free one in creation order, so that a repeated
/// sequence of calls gets the same addresses.
class SlotArena {
 public:
  enum class Memory { kPlain, kComm };  // kComm: from Collectives::empty_for_comm

  SlotArena(std::shared_ptr<Collectives> comm, c10::Device device, Memory memory);

  /// A free slot of this size; nullptr if there is none.
  Slot* try_acquire(int64_t bytes);
  /// A free slot, allocated if need be.
  Slot* acquire(int64_t bytes);
  void release(Slot* slot);

  int64_t count(int64_t bytes) const;
  int64_t allocations() const { return static_cast<int64_t>(slots_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Collectives> comm_;
  c10::Device device_;
  Memory memory_;
  std::vector<std::unique_ptr<Slot>> slots_;
  int64_t bytes_ = 0;
};

}  // namespace fsdp
