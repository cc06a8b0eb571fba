#include "fsdp_runtime/src/engine/slot_arena.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "fsdp_runtime/src/trace/trace_log.h"

namespace fsdp {

const at::Tensor& Slot::as(at::ScalarType dtype) {
  if (!elements.defined() || elements.scalar_type() != dtype) {
    elements = memory.view(dtype);
  }
  return elements;
}

SlotArena::SlotArena(std::shared_ptr<Collectives> comm, c10::Device device, Memory memory,
                     const char* content)
    : comm_(std::move(comm)), device_(device), memory_(memory), content_(content) {}

SlotArenas::SlotArenas(std::shared_ptr<Collectives> comm, c10::Device device)
    : comm(std::move(comm)),
      device(device),
      parameters(this->comm, device, SlotArena::Memory::kPlain, "gathered parameters"),
      gradients(this->comm, device, SlotArena::Memory::kComm, "unreduced gradients"),
      reduced(this->comm, device, SlotArena::Memory::kPlain, "reduced gradients") {}

int64_t SlotArenas::allocations() const {
  return parameters.allocations() + gradients.allocations() + reduced.allocations();
}

int64_t SlotArenas::bytes() const {
  return parameters.bytes() + gradients.bytes() + reduced.bytes();
}

bool SlotArenas::is_in_use() const {
  return parameters.leased_bytes() + gradients.leased_bytes() + reduced.leased_bytes() > 0;
}

void SlotArena::set_leased(Slot& slot, bool is_leased) {
  slot.is_leased = is_leased;
  leased_bytes_ += is_leased ? slot.bytes : -slot.bytes;
  if (trace::is_on()) {
    trace::add({.kind = trace::Event::Kind::kAmount,
                .category = "memory",
                .name = content_,
                .at_ns = trace::now_ns(),
                .bytes = static_cast<uint64_t>(leased_bytes_)});
  }
}

SlotLease SlotArena::try_acquire(int64_t bytes) {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (!slot->is_leased && slot->bytes == bytes) {
      set_leased(*slot, true);
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
  slot->arena = this;
  const c10::InferenceMode outside(false);  // it stays for the training behind an evaluation
  slot->memory = memory_ == Memory::kComm
                     ? comm_->empty_for_comm(bytes, at::kByte)
                     : at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  slot->bytes = bytes;
  slots_.push_back(std::move(slot));
  bytes_ += bytes;
  set_leased(*slots_.back(), true);
  return SlotLease(slots_.back().get());
}

int64_t SlotArena::count(int64_t bytes) const {
  return std::count_if(slots_.begin(), slots_.end(),
                       [bytes](const auto& slot) { return slot->bytes == bytes; });
}

}  // namespace fsdp
