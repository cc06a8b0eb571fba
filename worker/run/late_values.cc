#include "worker/run/late_values.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdprun::worker {

LateValues::LateValues(const at::Tensor& values) {
  if (values.is_cpu()) {
    on_host_ = values;
    return;
  }
  on_host_ =
      at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(/*required=*/true));
  on_host_.copy_(values, /*non_blocking=*/true);
  const at::Device device = values.device();
  is_there_.emplace(device.type());
  is_there_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const at::Tensor& LateValues::Get() {
  if (is_there_) {
    is_there_->synchronize();
    is_there_.reset();
  }
  return on_host_;
}

}  // namespace fsdprun::worker
