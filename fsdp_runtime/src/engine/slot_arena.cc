#include "fsdp_runtime/src/engine/slot_arena.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fsdp {

SlotArena::SlotArena(std::shared_ptr<Collectives> comm, c10::Device device, Memory memory)
    : comm_(std::move(comm)), device_(device), memory_(memory) {}

Slot* SlotArena::try_acquire(int64_t bytes) {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (!slot->is_used && slot->bytes == bytes) {
      slot->is_used = true;
      return slot.get();
    }
  }
  return nullptr;
}

Slot* SlotArena::acquire(int64_t bytes) {
  if (Slot* slot = try_acquire(bytes)) {
    return slot;
  }
  auto slot = std::make_unique<Slot>();
  slot->memory = memory_ == Memory::kComm
                     ? comm_->empty_for_comm(bytes, at::kByte)
                     : at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  slot->bytes = bytes;
  slot->is_used = true;
  slots_.push_back(std::move(slot));
  bytes_ += bytes;
  return slots_.back().get();
}

void SlotArena::release(Slot* slot) {
  TORCH_INTERNAL_ASSERT(slot->is_used, "a slot was given back twice");
  slot->is_used = false;
}

int64_t SlotArena::count(int64_t bytes) const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [bytes](const auto& slot) { return slot->bytes == bytes; });
}

}  // namespace fsdp
