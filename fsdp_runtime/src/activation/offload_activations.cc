#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fsdp/offload_activations.h>

#include "fsdp_runtime/src/activation/saved_on_cpu.h"

namespace fsdp {
namespace {

class OnCpu : public torch::autograd::SavedVariableHooks {
 public:
  OnCpu(const OffloadActivations::Options& options, bool (*is_on_host)(const at::Tensor&))
      : options_(options), is_on_host_(is_on_host) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    const at::NoGradGuard no_graph;
    const bool stays = is_on_host_(tensor) || (tensor.is_leaf() && tensor.requires_grad()) ||
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
      at::Tensor tensor = at::empty_strided(kept_.sizes(), kept_.strides(),
                                            kept_.options().device(*device_).pinned_memory(false));
      return tensor.copy_(kept_, /*non_blocking=*/options_.pin_memory);
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
  bool (*const is_on_host_)(const at::Tensor&);
  at::Tensor kept_;
  uint32_t version_ = 0;               // of a tensor that stays
  std::optional<c10::Device> device_;  // to which it comes back
};

bool is_on_cpu(const at::Tensor& tensor) { return tensor.is_cpu(); }

}  // namespace

detail::SavedTensorScope::Hooks detail::saved_on_cpu(const OffloadActivations::Options& options,
                                                     bool (*is_on_host)(const at::Tensor&)) {
  return std::make_unique<OnCpu>(options, is_on_host);
}

struct OffloadActivations::Open {
  explicit Open(const Options& options)
      : hooks([options] { return detail::saved_on_cpu(options, is_on_cpu); }) {}
  detail::SavedTensorScope hooks;
};

OffloadActivations::OffloadActivations(const Options& options)
    : open_(std::make_unique<Open>(options)) {}

OffloadActivations::~OffloadActivations() = default;

}  // namespace fsdp
