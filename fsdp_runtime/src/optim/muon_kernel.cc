#include "fsdp_runtime/src/optim/muon_kernel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "fsdp_runtime/src/optim/pieces.h"

namespace fsdp {

at::Tensor orthogonalize(const at::Tensor& update, const MuonOptions& options) {
  TORCH_CHECK(update.defined() && update.dim() == 2,
              "orthogonalize: expected a matrix, of 2 dimensions");
  at::NoGradGuard no_grad;
  return orthogonalize_here(update.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true),
                            options);
}

at::Tensor orthogonalize_here(at::Tensor update, const MuonOptions& options) {
  at::NoGradGuard no_grad;
  const auto [a, b, c] = options.ns_coefficients;
  const bool is_tall = update.size(0) > update.size(1);
  at::Tensor x = is_tall ? update.t() : update;
  update.reset();
  x.div_(x.norm().clamp_min(options.eps));
  for (int64_t step = 0; step < options.ns_steps; ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return is_tall ? x.t() : x;
}

void write_update(const at::Tensor& gradient, const at::Tensor& buffer, const MuonOptions& options,
                  const at::Tensor& update) {
  for_pieces(gradient.numel(), gradient.device(), [&](int64_t begin, int64_t numel) {
    const at::Tensor now = gradient.narrow(0, begin, numel);
    const at::Tensor momentum = buffer.narrow(0, begin, numel).lerp(now, 1 - options.momentum);
    update.narrow(0, begin, numel)
        .copy_(options.nesterov ? now.lerp(momentum, options.momentum) : momentum);
  });
}

void apply_update(const MuonPart& part, const MuonOptions& options, double rate,
                  const at::Tensor& is_skipped) {
  for_pieces(part.param.numel(), part.param.device(), [&](int64_t begin, int64_t numel) {
    at::Tensor buffer = part.buffer.narrow(0, begin, numel);
    at::Tensor param = part.param.narrow(0, begin, numel);
    const at::Tensor gradient = part.gradient.narrow(0, begin, numel);
    const at::Tensor update = part.update.narrow(0, begin, numel);
    if (is_skipped.defined()) {
      buffer.copy_(at::where(is_skipped, buffer, buffer.lerp(gradient, 1 - options.momentum)));
      param.copy_(at::where(is_skipped, param,
                            param.mul(1 - options.lr * options.weight_decay).add_(update, -rate)));
    } else {
      buffer.lerp_(gradient, 1 - options.momentum);
      param.mul_(1 - options.lr * options.weight_decay).add_(update, -rate);
    }
    if (part.copy.defined()) {
      part.copy.narrow(0, begin, numel).copy_(param);
    }
  });
}

double muon_rate(const MuonOptions& options, int64_t rows, int64_t columns) {
  const auto a = static_cast<double>(rows);
  const auto b = static_cast<double>(columns);
  const double ratio = options.adjust_lr_fn == MuonRate::kOriginal
                           ? std::sqrt(std::max(1.0, a / b))
                           : 0.2 * std::sqrt(std::max(a, b));
  return options.lr * ratio;
}

}  // namespace fsdp
