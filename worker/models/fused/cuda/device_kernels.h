#pragma once

#include <ATen/core/Tensor.h>

#include "worker/models/fused/cuda/kernel_cache.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {

/// Where kernels are launched: on CUDA, and in tests on the CPU, by an emulation.
class KernelLauncher {
 public:
  virtual ~KernelLauncher() = default;
  /// On the device of `on`, behind what is on its current stream. Returns when it is launched.
  virtual void Launch(const at::Tensor& on, const KernelCall& call) const = 0;
  virtual int MultiprocessorsOf(const at::Tensor& on) const = 0;
};

/// Of the process; only where HasDeviceKernels() was true.
const KernelLauncher& DeviceKernels();

/// Whether the kernels of the .cu files are for it: it is on CUDA, has numbers of float32 or
/// bfloat16, and this machine has NVRTC. Where it has none, ATen's operations take their place, of
/// which the process with the first device warns once. Threads: any.
bool HasDeviceKernels(const at::Tensor& tensor);

/// Whether loops or kernels of our own are for it.
inline bool HasKernels(const at::Tensor& tensor) {
  return HasRowKernels(tensor) || HasDeviceKernels(tensor);
}

}  // namespace fsdprun::worker::fused
