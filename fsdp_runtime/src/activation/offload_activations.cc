#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fsdp/offload_activations.h>

#include "fsdp_runtime/src/activation/saved_tensor_hooks.h"

namespace fsdp {
namespace {

class OnCpu : public torch::autograd::SavedVariableHooks {
 public:
  explicit OnCpu(const OffloadActivations::Options& options) : options_(options) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    const at::NoGradGuard no_graph;
    const bool stays = tensor.is_cpu() || (tensor.is_leaf() && tensor.requires_grad()) ||
                       tensor.layout() != at::kStrided ||
                       static_cast<int64_t>(tensor.nbytes()) < options_.min_bytes;
    if (stays) {
      kept_ = tensor.detach();
      return;
    }
    device_ = tensor.device();
    kept_ = at::empty_like(tensor,
                           tensor.options().device(at::kCPU).pinned_memory(options_.pin_memory));
    kept_.copy_(tensor, /*non_blocking=*/options_.pin_memory);
  }
  at::Tensor call_unpack_hook() override {
    const at::NoGradGuard no_graph;
    return device_ ? kept_.to(*device_, /*non_blocking=*/options_.pin_memory) : kept_;
  }

 private:
  const OffloadActivations::Options options_;
  at::Tensor kept_;
  std::optional<c10::Device> device_;  // to which it comes back
};

}  // namespace

struct OffloadActivations::Open {
  explicit Open(const Options& options)
      : hooks([options] { return std::make_unique<OnCpu>(options); }) {}
  detail::SavedTensorScope hooks;
};

OffloadActivations::OffloadActivations(const Options& options)
    : open_(std::make_unique<Open>(options)) {}

OffloadActivations::~OffloadActivations() = default;

}  // namespace fsdp
