#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

namespace fsdp {

// Argument checks shared by all backends. Each throws c10::Error that names the operation, what was
// expected and what was given.
FSDP_API void check_tensor(const char* operation, const at::Tensor& tensor, c10::DeviceType device);
FSDP_API void check_all_gather(const at::Tensor& output, const at::Tensor& input, int64_t size,
                               c10::DeviceType device);
FSDP_API void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int64_t size,
                                   c10::DeviceType device);
FSDP_API void check_reduction(const at::Tensor& tensor, ReduceOp op);
FSDP_API void check_root(int64_t root, int64_t size);

}  // namespace fsdp
