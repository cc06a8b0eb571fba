#include "fsdp_runtime/src/engine/slot_arena.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fsdp {

const at::Tensor& Slot::as(at::ScalarType dtype) {
  if (!elements.defined() || elements.scalar_type() != dtype) {
    elements = memory.view(dtype);
  }
  return elements;
}

SlotArena::SlotArena(std::shared_ptr<Collectives> comm, c10::Device device, Memory memory)
    : comm_(std::move(comm)), device_(device), memory_(memory) {}

SlotLease SlotArena::try_acquire(int64_t bytes) {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (!slot->is_leased && slot->bytes == bytes) {
      slot->is_leased = true;
      return SlotLease(slot.get());
    }
  }
  return nullptr;
}

SlotLease SlotArena::acquire(int64_t bytes) {
  if (SlotLease lease = try_acquire(bytes)) {
    return lease;
  }
  auto slot = std::make_unique<Slot>();
  slot->memory = memory_ == Memory::kComm
                     ? comm_->empty_for_comm(bytes, at::kByte)
                     : at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  slot->bytes = bytes;
  slot->is_leased = true;
  slots_.push_back(std::move(slot));
  bytes_ += bytes;
  return SlotLease(slots_.back().get());
}

int64_t SlotArena::count(int64_t bytes) const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [bytes](const auto& slot) { return slot->bytes == bytes; });
}

}  // namespace fsdp
