#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <fsdp/work.h>

#include <cstdint>

namespace fsdp {

/// What a user's allocate() has given for `what`. TORCH_CHECK unless it is what was asked for.
inline at::Tensor checked_memory(at::Tensor memory, int64_t numel, const at::TensorOptions& asked,
                                 const char* what) {
  TORCH_CHECK(memory.defined() && memory.is_contiguous() && memory.numel() == numel &&
                  memory.scalar_type() == c10::typeMetaToScalarType(asked.dtype()) &&
                  memory.device().type() == asked.device().type(),
              what, "::allocate() has returned ",
              memory.defined() ? memory.toString() : "an undefined tensor", " of ",
              memory.defined() ? memory.numel() : 0, " elements; a contiguous one of ", numel,
              " elements of ", asked.dtype(), " on ", asked.device(), " expected");
  return memory;
}

/// What a user's run() has given. TORCH_CHECK if it is null.
inline WorkPtr checked_work(WorkPtr work, const char* what) {
  TORCH_CHECK(work, what, "::run() has returned null; the work that it has issued expected");
  return work;
}

}  // namespace fsdp
