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
      version_ = tensor._version();
      return;
    }
    device_ = tensor.device();
    kept_ = at::empty_like(tensor,
                           tensor.options().device(at::kCPU).pinned_memory(options_.pin_memory));
    kept_.copy_(tensor, /*non_blocking=*/options_.pin_memory);
  }
  at::Tensor call_unpack_hook() override {
    const at::NoGradGuard no_graph;
    if (device_) {
      return kept_.to(*device_, /*non_blocking=*/options_.pin_memory);
    }
    // Autograd itself asks this only of tensors without hooks.
    TORCH_CHECK(kept_._version() == version_, "OffloadActivations: a tensor of ",
                kept_.scalar_type(), " of shape ", kept_.sizes(),
                " that was saved for backward, and stays where it is, has been "
                "modified in place since; it is at version ",
                kept_._version(), ", expected ", version_, "; work on a copy");
    return kept_;
  }

 private:
  const OffloadActivations::Options options_;
  at::Tensor kept_;
  uint32_t version_ = 0;               // of a tensor that stays
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
