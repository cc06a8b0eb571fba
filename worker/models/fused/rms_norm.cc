#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "worker/models/fused/ops.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {
namespace {

namespace autograd = torch::autograd;

/// float32 on the CPU.
class RmsNormFunction : public autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, double eps) {
    const at::Tensor input = x.contiguous();
    const at::Tensor factors = weight.contiguous();
    const at::Tensor y = at::empty_like(input);
    const at::Tensor scales = at::empty({RowsOf(input)}, input.options());
    const auto n = static_cast<size_t>(input.size(-1));
    const float* from = input.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    at::parallel_for(0, RowsOf(input), GrainFor(input), [&](int64_t begin, int64_t end) {
      const auto row = static_cast<size_t>(begin);
      RmsNormRows(from + row * n, factors.const_data_ptr<float>(), static_cast<float>(eps),
                  static_cast<size_t>(end - begin), n, to + row * n,
                  scales.mutable_data_ptr<float>() + row);
    });
    context->save_for_backward({input, factors, scales});
    return y;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    RefuseSecondDerivative("RmsNorm");
    const autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor& x = saved[0];
    const at::Tensor dx = at::empty_like(x);
    const auto n = static_cast<size_t>(x.size(-1));
    // A part of the rows, and a sum of its own for the weight's gradient, for each thread: which
    // depends on their number alone.
    const int64_t rows = RowsOf(x);
    const int64_t parts = std::max<int64_t>(
        1, std::min<int64_t>(at::get_num_threads(), rows / std::max<int64_t>(1, GrainFor(x))));
    const at::Tensor dw = at::zeros({parts, x.size(-1)}, x.options());
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const auto first = static_cast<size_t>(rows * part / parts);
        const auto last = static_cast<size_t>(rows * (part + 1) / parts);
        RmsNormRowsBackward(dy.const_data_ptr<float>() + first * n,
                            x.const_data_ptr<float>() + first * n, saved[1].const_data_ptr<float>(),
                            saved[2].const_data_ptr<float>() + first, last - first, n,
                            dx.mutable_data_ptr<float>() + first * n,
                            dw.mutable_data_ptr<float>() + static_cast<size_t>(part) * n);
      }
    });
    return {dx, parts == 1 ? dw.select(0, 0) : dw.sum(0), at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (HasRowKernels(x) && weight.scalar_type() == at::kFloat) {
    return RmsNormFunction::apply(x, weight, eps);
  }
  return at::rms_norm(x, {x.size(-1)}, weight, eps);
}

}  // namespace fsdprun::worker::fused
