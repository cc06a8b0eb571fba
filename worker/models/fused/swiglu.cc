#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/models/fused/cuda/device_rows.h"
#include "worker/models/fused/ops.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {
namespace {

namespace autograd = torch::autograd;

at::Tensor SwigluOnCpu(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor y = at::empty_like(gate);
  at::parallel_for(0, y.numel(), kGrain, [&](int64_t begin, int64_t end) {
    SwigluRow(gate.const_data_ptr<float>() + begin, up.const_data_ptr<float>() + begin,
              static_cast<size_t>(end - begin), y.mutable_data_ptr<float>() + begin);
  });
  return y;
}

void SwigluBackwardOnCpu(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                         const at::Tensor& dgate, const at::Tensor& dup) {
  at::parallel_for(0, dy.numel(), kGrain, [&](int64_t begin, int64_t end) {
    SwigluRowBackward(dy.const_data_ptr<float>() + begin, gate.const_data_ptr<float>() + begin,
                      up.const_data_ptr<float>() + begin, static_cast<size_t>(end - begin),
                      dgate.mutable_data_ptr<float>() + begin,
                      dup.mutable_data_ptr<float>() + begin);
  });
}

class SwigluFunction : public autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    const at::Tensor a = gate.contiguous(), b = up.contiguous();
    context->save_for_backward({a, b});
    return a.is_cuda() ? SwigluOnDevice(DeviceKernels(), a, b) : SwigluOnCpu(a, b);
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    RefuseSecondDerivative("Swiglu");
    const autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dgate = at::empty_like(dy), dup = at::empty_like(dy);
    if (dy.is_cuda()) {
      SwigluBackwardOnDevice(DeviceKernels(), dy, saved[0], saved[1], dgate, dup);
    } else {
      SwigluBackwardOnCpu(dy, saved[0], saved[1], dgate, dup);
    }
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (HasKernels(gate) && gate.scalar_type() == up.scalar_type() && gate.sizes() == up.sizes()) {
    return SwigluFunction::apply(gate, up);
  }
  return at::silu(gate) * up;
}

}  // namespace fsdprun::worker::fused
