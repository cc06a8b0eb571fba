#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/models/fused/cuda/kernel_sources.h"
#include "worker/models/fused/cuda/libraries.h"

namespace fsdprun::worker::fused {

/// A kernel was not compiled, loaded or launched. The message says of which source, for which
/// device, what CUDA says, and what to do.
class KernelError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The cubin of a source for an architecture, such as sm_90. `device`: for whom, in words. Threads:
/// any. Throws KernelError with NVRTC's log.
std::string CompileKernels(const Nvrtc& nvrtc, const KernelSource& source,
                           const std::string& architecture, const std::string& device);

/// One launch of a kernel.
struct KernelCall {
  const KernelSource* source = nullptr;
  std::string kernel;  // its name in the source
  LaunchShape shape;
  void** arguments = nullptr;  // of the types that the kernel has
};

/// Kernels of the process, each source compiled for an architecture when one of its kernels is
/// first launched on a device that has it, and loaded into each device then. Neither may happen
/// while a CUDA graph is captured; later launches may, which do no more than look a name up and
/// call cuLaunchKernel. What is loaded stays so until the process ends. Threads: any; those that
/// come while another one compiles wait for it.
class KernelCache {
 public:
  KernelCache(Nvrtc nvrtc, Driver driver);

  /// `device`: the number by which CUDA's runtime knows it; its primary context becomes that of the
  /// calling thread. `stream`: a CUstream of the device. Throws KernelError.
  void Launch(int device, void* stream, const KernelCall& call);

  /// Of the device. Throws KernelError.
  int MultiprocessorsOf(int device);

 private:
  struct Device {
    int number = 0;
    void* context = nullptr;
    std::string architecture;  // such as sm_90
    int multiprocessors = 0;
    std::map<std::string, void*> modules;  // by the name of the source
    std::map<std::string, void*> functions;
  };

  // With the lock.
  Device& DeviceOf(int number);
  Device FindDevice(int number);
  int AttributeOf(const Device& device, int handle, int attribute);
  void* FunctionOf(Device& device, const KernelSource& source, const std::string& kernel);
  void* ModuleOf(Device& device, const KernelSource& source);
  const std::string& CubinOf(const Device& device, const KernelSource& source);

  void EnterContext(const Device& device);
  void CheckDriver(int result, const std::string& attempt, const Device& device) const;

  const Nvrtc nvrtc_;
  const Driver driver_;
  std::mutex mutex_;
  std::map<int, Device> devices_;
  std::map<std::pair<std::string, std::string>, std::string> cubins_;  // of architecture, source
};

}  // namespace fsdprun::worker::fused
