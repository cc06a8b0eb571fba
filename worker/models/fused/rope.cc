#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/models/fused/cuda/device_rows.h"
#include "worker/models/fused/ops.h"
#include "worker/models/fused/rows.h"
#include "worker/models/rope.h"

namespace fsdprun::worker::fused {
namespace {

namespace autograd = torch::autograd;

/// x: [batch, length, heads, dim]; cos, sin: contiguous [1, length, dim].
at::Tensor RotateOnCpu(const at::Tensor& any_x, const at::Tensor& cos, const at::Tensor& sin,
                       bool is_back) {
  const at::Tensor x = any_x.contiguous();
  const at::Tensor y = at::empty_like(x);
  const auto loop = is_back ? RotateHeadsBack : RotateHeads;
  const int64_t length = x.size(1);
  const auto heads = static_cast<size_t>(x.size(2)), dim = static_cast<size_t>(x.size(3));
  const int64_t grain = std::max<int64_t>(1, GrainFor(x) / x.size(2));
  at::parallel_for(0, x.size(0) * length, grain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const size_t at = static_cast<size_t>(token) * heads * dim;
      const size_t position = static_cast<size_t>(token % length) * dim;
      loop(x.const_data_ptr<float>() + at, cos.const_data_ptr<float>() + position,
           sin.const_data_ptr<float>() + position, heads, dim, y.mutable_data_ptr<float>() + at);
    }
  });
  return y;
}

at::Tensor RotateAll(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                     bool is_back) {
  return x.is_cuda() ? RopeOnDevice(DeviceKernels(), x, cos, sin, is_back ? -1.0F : 1.0F)
                     : RotateOnCpu(x, cos, sin, is_back);
}

class RopeFunction : public autograd::Function<RopeFunction> {
 public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& cos, const at::Tensor& sin) {
    const at::Tensor cosines = cos.contiguous(), sines = sin.contiguous();
    context->save_for_backward({cosines, sines});
    return RotateAll(x, cosines, sines, /*is_back=*/false);
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    RefuseSecondDerivative("Rope");
    const autograd::variable_list saved = context->get_saved_variables();
    return {RotateAll(gradients[0], saved[0], saved[1], /*is_back=*/true), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const bool is_for_loops = HasRowKernels(x) && cos.scalar_type() == at::kFloat;
  if (is_for_loops || (HasDeviceKernels(x) && FitsRopeOnDevice(x, cos, sin))) {
    return RopeFunction::apply(x, cos, sin);
  }
  return ApplyRope(x.transpose(1, 2), cos, sin).transpose(1, 2).contiguous();
}

}  // namespace fsdprun::worker::fused
