#include "worker/run/device_values.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fsdprun::worker {

at::Tensor ValuesOn(at::Device device, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor on_host =
      at::empty({count}, at::TensorOptions(at::kFloat).pinned_memory(!device.is_cpu()));
  std::copy(values.begin(), values.end(), on_host.mutable_data_ptr<float>());
  return device.is_cpu() ? on_host : on_host.to(device, /*non_blocking=*/true);
}

}  // namespace fsdprun::worker
