#include <ATen/ATen.h>
#include <fsdp/custom_comm.h>

namespace fsdp {
namespace {

at::Tensor plain_memory(int64_t numel, at::ScalarType dtype, c10::Device device) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

at::Tensor AllGather::allocate(int64_t numel, at::ScalarType dtype, c10::Device device) {
  return plain_memory(numel, dtype, device);
}

at::Tensor ReduceScatter::allocate(int64_t numel, at::ScalarType dtype, c10::Device device) {
  return plain_memory(numel, dtype, device);
}

}  // namespace fsdp
