#include "fsdp_runtime/src/comm/arguments.h"

#include <c10/util/Exception.h>

namespace fsdp {

void check_tensor(const char* operation, const at::Tensor& tensor, c10::DeviceType device) {
  TORCH_CHECK(tensor.defined(), operation, ": tensor is undefined");
  TORCH_CHECK(tensor.device().type() == device, operation, ": tensor on ",
              c10::DeviceTypeName(device, true), " expected, got one on ", tensor.device());
  TORCH_CHECK(tensor.is_contiguous(), operation, ": contiguous tensor expected, got strides ",
              tensor.strides(), " for sizes ", tensor.sizes());
}

namespace {

void check_pair(const char* operation, const at::Tensor& output, const at::Tensor& input,
                c10::DeviceType device) {
  check_tensor(operation, output, device);
  check_tensor(operation, input, device);
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), operation, ": output is ",
              output.scalar_type(), " but input is ", input.scalar_type());
}

}  // namespace

void check_all_gather(const at::Tensor& output, const at::Tensor& input, int64_t size,
                      c10::DeviceType device) {
  check_pair("all_gather_into", output, input, device);
  TORCH_CHECK(output.numel() == size * input.numel(), "all_gather_into: output of ", size, " x ",
              input.numel(), " elements expected, got ", output.numel());
}

void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int64_t size,
                          c10::DeviceType device) {
  check_pair("reduce_scatter_into", output, input, device);
  TORCH_CHECK(input.numel() == size * output.numel(), "reduce_scatter_into: input of ", size, " x ",
              output.numel(), " elements expected, got ", input.numel());
}

void check_reduction(const at::Tensor& tensor, ReduceOp op) {
  const auto dtype = tensor.scalar_type();
  const bool is_float =
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
  const bool is_int = dtype == at::kInt || dtype == at::kLong;
  TORCH_CHECK(is_float || is_int, "cannot reduce tensors of ", dtype,
              "; float32, float64, bfloat16, float16, int32 or int64 expected");
  TORCH_CHECK(is_float || op != ReduceOp::kAvg, "kAvg of ", dtype,
              " is not defined; sum and divide, or convert to a floating type");
}

void check_root(int64_t root, int64_t size) {
  TORCH_CHECK(root >= 0 && root < size, "broadcast: root ", root, " is not a rank of ", size);
}

}  // namespace fsdp
