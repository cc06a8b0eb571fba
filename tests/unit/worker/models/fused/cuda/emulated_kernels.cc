#include "tests/unit/worker/models/fused/cuda/emulated_kernels.h"

#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "tests/unit/worker/models/fused/cuda/emulation.h"

// In a namespace, for their names are short.
namespace emulated {
#include "worker/models/fused/cuda/cross_entropy.cu"
#include "worker/models/fused/cuda/rope.cu"
#include "worker/models/fused/cuda/swiglu.cu"
}  // namespace emulated

namespace fsdprun::worker {
namespace {

using Kernel = std::function<void(void**)>;

/// Takes the arguments as the driver does: by the types of the kernel's parameters.
template <typename... Parameters, size_t... kIndices>
Kernel Bind(void (*kernel)(Parameters...), std::index_sequence<kIndices...> /*unused*/) {
  return [kernel](void** arguments) { kernel(*static_cast<Parameters*>(arguments[kIndices])...); };
}

template <typename... Parameters>
Kernel Bind(void (*kernel)(Parameters...)) {
  return Bind(kernel, std::index_sequence_for<Parameters...>());
}

const std::map<std::pair<std::string, std::string>, Kernel>& Kernels() {
#define ENTRIES(suffix, T, kWide)                                                            \
  {{"rope.cu", "rope_" #suffix}, Bind(emulated::rope_##suffix)},                             \
      {{"swiglu.cu", "swiglu_" #suffix}, Bind(emulated::swiglu_##suffix)},                   \
      {{"swiglu.cu", "swiglu_backward_" #suffix}, Bind(emulated::swiglu_backward_##suffix)}, \
      {{"cross_entropy.cu", "cross_entropy_" #suffix}, Bind(emulated::cross_entropy_##suffix)},
  static const std::map<std::pair<std::string, std::string>, Kernel> kernels = {
      FSDPRUN_INSTANCES(ENTRIES)};
#undef ENTRIES
  return kernels;
}

}  // namespace

std::string RunEmulated(const std::string& source, const std::string& kernel,
                        const fused::LaunchShape& shape, void** arguments,
                        const emulation::Schedule& schedule) {
  const Kernel& found = Kernels().at({source, kernel});
  return emulation::Run({shape.blocks, shape.threads, schedule}, [&] { found(arguments); });
}

}  // namespace fsdprun::worker
