#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/models/fused/ops.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {
namespace {

namespace autograd = torch::autograd;

class SwigluFunction : public autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    const at::Tensor a = gate.contiguous(), b = up.contiguous();
    const at::Tensor y = at::empty_like(a);
    at::parallel_for(0, a.numel(), kGrain, [&](int64_t begin, int64_t end) {
      SwigluRow(a.const_data_ptr<float>() + begin, b.const_data_ptr<float>() + begin,
                static_cast<size_t>(end - begin), y.mutable_data_ptr<float>() + begin);
    });
    context->save_for_backward({a, b});
    return y;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    RefuseSecondDerivative("Swiglu");
    const autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dgate = at::empty_like(dy), dup = at::empty_like(dy);
    at::parallel_for(0, dy.numel(), kGrain, [&](int64_t begin, int64_t end) {
      SwigluRowBackward(
          dy.const_data_ptr<float>() + begin, saved[0].const_data_ptr<float>() + begin,
          saved[1].const_data_ptr<float>() + begin, static_cast<size_t>(end - begin),
          dgate.mutable_data_ptr<float>() + begin, dup.mutable_data_ptr<float>() + begin);
    });
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up) {
  if (HasRowKernels(gate) && HasRowKernels(up)) {
    return SwigluFunction::apply(gate, up);
  }
  return at::silu(gate) * up;
}

}  // namespace fsdprun::worker::fused
