#include "fsdp_runtime/src/optim/adamw_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

namespace fsdp {
namespace {

// Five float32 arrays of this many elements fit the L2 cache.
constexpr int64_t kPieceNumel = 32 * 1024;

struct Piece {
  int64_t begin;
  int64_t end;
  bool decays;
};

std::vector<Piece> cut(const std::vector<DecaySegment>& segments) {
  std::vector<Piece> pieces;
  for (const DecaySegment& segment : segments) {
    for (int64_t begin = segment.begin; begin < segment.end; begin += kPieceNumel) {
      pieces.push_back({begin, std::min(begin + kPieceNumel, segment.end), segment.decays});
    }
  }
  return pieces;
}

void update_piece(const AdamWTensors& tensors, const Piece& piece, const AdamWStep& step,
                  at::Tensor& scratch) {
  const int64_t numel = piece.end - piece.begin;
  at::Tensor param = tensors.param.narrow(0, piece.begin, numel);
  at::Tensor gradient = tensors.gradient.narrow(0, piece.begin, numel);
  at::Tensor exp_avg = tensors.exp_avg.narrow(0, piece.begin, numel);
  at::Tensor exp_avg_sq = tensors.exp_avg_sq.narrow(0, piece.begin, numel);
  if (piece.decays && step.weight_decay != 0) {
    param.mul_(step.decay_factor);
  }
  exp_avg.lerp_(gradient, 1 - step.beta1);
  exp_avg_sq.mul_(step.beta2).addcmul_(gradient, gradient, 1 - step.beta2);
  at::Tensor denominator = scratch.narrow(0, 0, numel);
  at::sqrt_out(denominator, exp_avg_sq);
  denominator.div_(step.bias_correction2_sqrt).add_(step.eps);
  param.addcdiv_(exp_avg, denominator, -step.step_size);
}

void apply_in_pieces(const AdamWTensors& tensors, const std::vector<DecaySegment>& segments,
                     const AdamWStep& step) {
  const std::vector<Piece> pieces = cut(segments);
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    c10::InferenceMode no_autograd;  // per thread, and cheaper than no_grad
    at::Tensor scratch = at::empty({kPieceNumel}, tensors.param.options());
    for (int64_t i = begin; i < end; ++i) {
      update_piece(tensors, pieces[static_cast<size_t>(i)], step, scratch);
    }
  });
}

void apply_fused(const AdamWTensors& tensors, const std::vector<DecaySegment>& segments,
                 const AdamWStep& step) {
  const at::Tensor t =
      at::full({}, static_cast<double>(step.t), tensors.param.options().dtype(at::kFloat));
  for (const DecaySegment& segment : segments) {
    const auto part = [&segment](const at::Tensor& whole) {
      return std::vector<at::Tensor>{whole.narrow(0, segment.begin, segment.end - segment.begin)};
    };
    const std::vector<at::Tensor> params = part(tensors.param);
    const std::vector<at::Tensor> gradients = part(tensors.gradient);
    const std::vector<at::Tensor> exp_avgs = part(tensors.exp_avg);
    const std::vector<at::Tensor> exp_avg_sqs = part(tensors.exp_avg_sq);
    at::_fused_adamw_(params, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, {t},
                      step.lr, step.beta1, step.beta2, segment.decays ? step.weight_decay : 0.0,
                      step.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace

AdamWStep make_adamw_step(const AdamWOptions& options, int64_t t) {
  AdamWStep step;
  step.t = t;
  step.lr = options.lr;
  step.beta1 = options.beta1;
  step.beta2 = options.beta2;
  step.eps = options.eps;
  step.weight_decay = options.weight_decay;
  step.decay_factor = 1 - options.lr * options.weight_decay;
  step.step_size = options.lr / (1 - std::pow(options.beta1, static_cast<double>(t)));
  // pow, not sqrt, to be bit-equal to Python's `** 0.5`.
  step.bias_correction2_sqrt = std::pow(1 - std::pow(options.beta2, static_cast<double>(t)), 0.5);
  return step;
}

void apply_adamw(const AdamWTensors& tensors, const std::vector<DecaySegment>& segments,
                 const AdamWStep& step) {
  if (tensors.param.is_cpu()) {
    apply_in_pieces(tensors, segments, step);
  } else {
    apply_fused(tensors, segments, step);
  }
}

}  // namespace fsdp
