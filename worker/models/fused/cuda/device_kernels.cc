#include "worker/models/fused/cuda/device_kernels.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <string>
#include <variant>

namespace fsdprun::worker::fused {
namespace {

/// Where the LibTorch of this process is; "" if that cannot be told, which is no error here, unlike
/// in libfsdp, whose own search for NCCL in that folder is not part of its interface.
std::string TorchFolder() {
  void* const loaded = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) {
    return "";
  }
  const link_map* place = nullptr;
  const bool is_known = ::dlinfo(loaded, RTLD_DI_LINKMAP, &place) == 0;
  const std::string folder =
      is_known ? std::filesystem::path(place->l_name).parent_path().string() : "";
  ::dlclose(loaded);
  return folder;
}

/// The major version of LibTorch's CUDA, by the runtime that it has loaded; 0 if that has another
/// name, as in LibTorch's archives.
int CudaOfTorch() {
  for (const int major : {13, 12}) {
    const std::string name = "libcudart.so." + std::to_string(major);
    if (void* const loaded = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      ::dlclose(loaded);
      return major;
    }
  }
  return 0;
}

class CudaLauncher : public KernelLauncher {
 public:
  explicit CudaLauncher(const LibraryNames& names)
      : cache_(OpenNvrtc(names.nvrtc), OpenDriver(names.driver)) {}

  void Launch(const at::Tensor& on, const KernelCall& call) const override {
    const c10::DeviceGuard guard(on.device());
    // The stream that LibTorch's own operations take. libtorch_cuda, which this does not link,
    // registers its guard when it is loaded; of that LibTorch 2.11 has a native handle, the
    // cudaStream_t, which is the driver's CUstream.
    const c10::impl::VirtualGuardImpl cuda(on.device().type());
    void* const stream = cuda.getStreamNativeHandle(cuda.getStream(on.device()));
    cache_.Launch(on.device().index(), stream, call);
  }

  int MultiprocessorsOf(const at::Tensor& on) const override {
    return cache_.MultiprocessorsOf(on.device().index());
  }

 private:
  mutable KernelCache cache_;
};

/// The launcher, or why there is none.
using Outcome = std::variant<const KernelLauncher*, std::string>;

const Outcome& TheLauncher() {
  // Never destroyed: kernels may run, and the driver be gone, when the process ends.
  static const Outcome outcome = []() -> Outcome {
    try {
      return new CudaLauncher(UsualLibraryNames(TorchFolder(), CudaOfTorch()));
    } catch (const LibraryMissing& missing) {
      return missing.what();
    }
  }();
  return outcome;
}

}  // namespace

const KernelLauncher& DeviceKernels() { return *std::get<const KernelLauncher*>(TheLauncher()); }

bool HasDeviceKernels(const at::Tensor& tensor) {
  const bool has_dtype =
      tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
  if (!tensor.is_cuda() || !has_dtype || tensor.numel() == 0) {
    return false;
  }
  const auto* const why_not = std::get_if<std::string>(&TheLauncher());
  if (why_not != nullptr && tensor.device().index() == 0) {  // one of a node's processes
    TORCH_WARN_ONCE(
        "model.kernels=fused computes with PyTorch's operations on this machine's GPUs, "
        "which takes more time: ",
        *why_not,
        "; install the package nvidia-cuda-nvrtc of LibTorch's CUDA, or put the "
        "library's folder into LD_LIBRARY_PATH");
  }
  return why_not == nullptr;
}

}  // namespace fsdprun::worker::fused
