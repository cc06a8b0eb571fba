#include "fsdp_runtime/src/optim/adamw_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "fsdp_runtime/src/engine/disk_memory.h"

namespace fsdp {
namespace {

// Five float32 arrays of this many elements fit the L2 cache.
constexpr int64_t kPieceNumel = 32 * 1024;
// Of parts on disk, at a time: 8 MiB of four float32 arrays.
constexpr size_t kPortionPieces = 16;

}  // namespace

FusedScaling::FusedScaling(const GradScaling& scaling) {
  if (scaling.grad_scale.defined()) {
    grad_scale_ = scaling.grad_scale;
  }
  if (scaling.found_inf.defined()) {
    // 0-dim, as the counters are: _foreach_add_ takes nothing else.
    found_inf_ = scaling.found_inf.ne(0).to(at::kFloat).reshape({});
  }
}

void FusedScaling::count(const std::vector<at::Tensor>& counters) const {
  if (found_inf_) {
    at::_foreach_add_(counters, 1 - *found_inf_);
  } else {
    at::_foreach_add_(counters, 1);
  }
}

void AdamWList::add(const Part& part) {
  const int64_t numel = part.param.numel();
  for (int64_t begin = 0; begin < numel; begin += kPieceNumel) {
    pieces_.push_back({params_.size(), begin, std::min(begin + kPieceNumel, numel)});
  }
  params_.push_back(part.param);
  gradients_.push_back(part.gradient);
  exp_avgs_.push_back(part.exp_avg);
  exp_avg_sqs_.push_back(part.exp_avg_sq);
  steps_.push_back(part.steps);
  copies_.push_back(part.copy);
  is_some_on_disk_ = is_some_on_disk_ || is_on_disk(part.param);
}

AdamWList::Scalars AdamWList::scalars_of(const AdamWOptions& options, const at::Tensor& steps,
                                         const GradientFactor& scaling) {
  const auto t = steps.item<double>();
  // pow, not sqrt, to be bit-equal to Python's `** 0.5`.
  return {options.lr / (1 - std::pow(options.beta1, t)),
          std::pow(1 - std::pow(options.beta2, t), 0.5), scaling};
}

void AdamWList::update_piece(const Piece& piece, const AdamWOptions& options,
                             const Scalars& scalars, at::Tensor& scratch) {
  const int64_t numel = piece.end - piece.begin;
  at::Tensor param = params_[piece.part].narrow(0, piece.begin, numel);
  at::Tensor gradient = gradients_[piece.part].narrow(0, piece.begin, numel);
  at::Tensor exp_avg = exp_avgs_[piece.part].narrow(0, piece.begin, numel);
  at::Tensor exp_avg_sq = exp_avg_sqs_[piece.part].narrow(0, piece.begin, numel);
  if (scalars.scaling.divisor != 1) {
    gradient.div_(scalars.scaling.divisor);
  }
  if (scalars.scaling.factor != 1) {
    gradient.mul_(scalars.scaling.factor);
  }
  if (options.weight_decay != 0) {
    param.mul_(1 - options.lr * options.weight_decay);
  }
  exp_avg.lerp_(gradient, 1 - options.beta1);
  exp_avg_sq.mul_(options.beta2).addcmul_(gradient, gradient, 1 - options.beta2);
  at::Tensor denominator = scratch.narrow(0, 0, numel);
  at::sqrt_out(denominator, exp_avg_sq);
  denominator.div_(scalars.bias_correction2_sqrt).add_(options.eps);
  param.addcdiv_(exp_avg, denominator, -scalars.step_size);
  if (const at::Tensor& copy = copies_[piece.part]; copy.defined()) {
    copy.narrow(0, piece.begin, numel).copy_(param);
  }
}

void AdamWList::apply_in_pieces(const AdamWOptions& options, const GradientFactor& scaling) {
  std::vector<Scalars> scalars;
  scalars.reserve(steps_.size());
  for (const at::Tensor& steps : steps_) {
    scalars.push_back(scalars_of(options, steps, scaling));
  }
  update_in_portions(
      [&](size_t first, size_t end) { update_pieces(first, end, options, scalars); });
}

void AdamWList::apply_in_one_pass(const AdamWOptions& options, const GradientFactor& scaling) {
  if (!is_some_on_disk_) {
    update_whole(options, scaling);
    return;
  }
  update_in_portions(
      [&](size_t first, size_t end) { portion(first, end).update_whole(options, scaling); });
}

template <class Update>
void AdamWList::update_in_portions(Update update) {
  if (!is_some_on_disk_) {
    update(0, pieces_.size());
    return;
  }
  const auto release = [this](size_t first, size_t end, void (*how)(const at::Tensor&)) {
    for_ranges(first, end, [&](size_t part, int64_t begin, int64_t numel) {
      for (const auto* tensors : {&params_, &gradients_, &exp_avgs_, &exp_avg_sqs_}) {
        how((*tensors)[part].narrow(0, begin, numel));
      }
    });
  };
  size_t last = 0;  // where the portion before begins
  for (size_t first = 0; first < pieces_.size(); first += kPortionPieces) {
    const size_t end = std::min(first + kPortionPieces, pieces_.size());
    update(first, end);
    release(first, end, begin_to_release);
    release(last, first, release_pages);
    last = first;
  }
  release(last, pieces_.size(), release_pages);
}

void AdamWList::update_pieces(size_t first, size_t end, const AdamWOptions& options,
                              const std::vector<Scalars>& scalars) {
  const auto count = static_cast<int64_t>(end - first);
  at::parallel_for(0, count, 1, [&](int64_t from, int64_t to) {
    c10::InferenceMode no_autograd;  // per thread, and cheaper than no_grad
    at::Tensor scratch = at::empty({kPieceNumel}, params_.front().options());
    for (int64_t i = from; i < to; ++i) {
      const Piece& piece = pieces_[first + static_cast<size_t>(i)];
      update_piece(piece, options, scalars[piece.part], scratch);
    }
  });
}

template <class Use>
void AdamWList::for_ranges(size_t first, size_t end, Use use) const {
  while (first < end) {
    const size_t part = pieces_[first].part;
    const int64_t begin = pieces_[first].begin;
    int64_t numel = 0;
    for (; first < end && pieces_[first].part == part; ++first) {
      numel = pieces_[first].end - begin;
    }
    use(part, begin, numel);
  }
}

AdamWList AdamWList::portion(size_t first, size_t end) const {
  AdamWList list(dtype_, param_group_);
  for_ranges(first, end, [&](size_t part, int64_t begin, int64_t numel) {
    const auto cut = [=](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, begin, numel) : x;
    };
    list.add({cut(params_[part]), cut(gradients_[part]), cut(exp_avgs_[part]),
              cut(exp_avg_sqs_[part]), steps_[part], cut(copies_[part])});
  });
  return list;
}

void AdamWList::update_whole(const AdamWOptions& options, const GradientFactor& scaling) {
  if (scaling.factor != 1) {
    at::_foreach_mul_(gradients_, scaling.factor);
  }
  std::optional<at::Tensor> divisor;
  if (scaling.divisor != 1) {
    divisor = at::scalar_tensor(scaling.divisor, at::kFloat);
  }
  at::_fused_adamw_(params_, gradients_, exp_avgs_, exp_avg_sqs_, /*max_exp_avg_sqs=*/{}, steps_,
                    options.lr, options.beta1, options.beta2, options.weight_decay, options.eps,
                    /*amsgrad=*/false, /*maximize=*/false, divisor, /*found_inf=*/std::nullopt);
  for (size_t i = 0; i < params_.size(); ++i) {
    if (copies_[i].defined()) {
      copies_[i].copy_(params_[i]);
    }
  }
}

void AdamWList::apply_fused(const AdamWOptions& options, const at::Tensor& lr,
                            const FusedScaling& scaling) {
  at::_fused_adamw_(params_, gradients_, exp_avgs_, exp_avg_sqs_, /*max_exp_avg_sqs=*/{}, steps_,
                    lr, options.beta1, options.beta2, options.weight_decay, options.eps,
                    /*amsgrad=*/false, /*maximize=*/false, scaling.grad_scale(),
                    scaling.found_inf());
}

}  // namespace fsdp
