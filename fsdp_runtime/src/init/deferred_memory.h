#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace fsdp {

/// A contiguous or strided tensor whose memory nobody has touched yet. CPU: zeros; large ones take
/// address space only, until they are written. Device: no memory at all before ensure_memory().
at::Tensor deferred_tensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                           const at::TensorOptions& options);

/// The storage of a deferred_tensor() has memory afterwards.
void ensure_memory(const c10::Storage& storage);
/// What is in it is not needed any more.
void discard_memory(const c10::Storage& storage);

}  // namespace fsdp
