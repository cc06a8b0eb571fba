#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

class SlotArena;

/// A reusable buffer with a stable address for the arena's lifetime.
struct Slot {
  SlotArena* arena = nullptr;
  at::Tensor memory;  // bytes
  int64_t bytes = 0;
  bool is_leased = false;
  at::Tensor elements;  // what as() has returned last

  void* data() const { return memory.data_ptr(); }
  /// The memory as elements of `dtype`. The tensor is kept: to make one takes as long as to reduce
  /// a small group.
  const at::Tensor& as(at::ScalarType dtype);
};

/// Makes a slot free for the next lease.
struct SlotReturn {
  void operator()(Slot* slot) const;
};
/// Exclusive use of a slot until it is destroyed or reset; the slot's arena must outlive it.
using SlotLease = std::unique_ptr<Slot, SlotReturn>;

/// Slots by exact size. acquire() returns the first free one in creation order, so that a repeated
/// sequence of calls gets the same addresses. Thread: the rank's.
class SlotArena {
 public:
  enum class Memory { kPlain, kComm };  // kComm: from Collectives::empty_for_comm

  /// `content`: what traces call it; static.
  SlotArena(std::shared_ptr<Collectives> comm, c10::Device device, Memory memory,
            const char* content);

  /// A free slot of this size; null if there is none.
  SlotLease try_acquire(int64_t bytes);
  /// A free slot, allocated if need be.
  SlotLease acquire(int64_t bytes);

  int64_t count(int64_t bytes) const;
  int64_t allocations() const { return static_cast<int64_t>(slots_.size()); }
  int64_t bytes() const { return bytes_; }
  int64_t leased_bytes() const { return leased_bytes_; }

 private:
  friend SlotReturn;

  void set_leased(Slot& slot, bool is_leased);

  std::shared_ptr<Collectives> comm_;
  c10::Device device_;
  Memory memory_;
  std::vector<std::unique_ptr<Slot>> slots_;
  int64_t bytes_ = 0;
  int64_t leased_bytes_ = 0;
  const char* content_;
};

/// Memory for what units gather and reduce: of one root, or of several that share it.
struct SlotArenas {
  /// `comm`: whose collectives read unsharded gradients.
  SlotArenas(std::shared_ptr<Collectives> comm, c10::Device device);
  int64_t allocations() const;
  int64_t bytes() const;
  bool is_in_use() const;

  const std::shared_ptr<Collectives> comm;
  const c10::Device device;
  SlotArena parameters, gradients, reduced;
  int64_t uses = 0;  // counted by whoever may have taken or given back memory for parameters
  std::weak_ptr<c10::Event> update;  // the last post-optimizer event; roots may have it in common
  int64_t uses_at_update = 0;        // when the first of them was given it
};

inline void SlotReturn::operator()(Slot* slot) const { slot->arena->set_leased(*slot, false); }

}  // namespace fsdp
