#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp_runtime/src/engine/guard_pages.h"

namespace fsdp {

/// A storage whose memory can be replaced under the tensors that view it. Autograd sees neither a
/// new tensor nor a new version, so tensors saved in forward read the memory that is current in
/// backward. Does not own the memory: the caller of point_to() keeps it alive.
class RetargetableStorage {
 public:
  /// Starts poisoned.
  RetargetableStorage(int64_t bytes, c10::Device device);
  /// Poisons, as tensors may outlive this object.
  ~RetargetableStorage();
  RetargetableStorage(const RetargetableStorage&) = delete;
  RetargetableStorage& operator=(const RetargetableStorage&) = delete;

  /// `data` holds at least bytes() bytes and stays valid until the next call.
  void point_to(void* data);
  /// Makes every access through a view fault: on the CPU at the offending instruction.
  void poison();
  /// What a fault in `numel` elements from `offset` on is told to be of, on the CPU: "parameter
  /// layers.0.weight".
  void set_name(at::ScalarType dtype, int64_t offset, int64_t numel, const std::string& name);
  /// A contiguous tensor of `sizes`, `offset` elements into the storage.
  at::Tensor view(at::ScalarType dtype, int64_t offset, at::IntArrayRef sizes) const;
  int64_t bytes() const { return bytes_; }

 private:
  std::optional<GuardedRange> guarded_;  // on the CPU
  c10::Storage storage_;
  c10::Device device_;
  int64_t bytes_;
};

}  // namespace fsdp
