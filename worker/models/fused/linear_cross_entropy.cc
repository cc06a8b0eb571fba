#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "worker/models/fused/ops.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {
namespace {

namespace autograd = torch::autograd;

constexpr int64_t kLogitsOfChunk = int64_t{8} << 20;

/// Of a chunk of rows: the sum of the cross entropies of those that count. `logits`: float32
/// [rows, vocab_size]; becomes the gradient of that sum.
at::Tensor SumOnCpu(at::Tensor& logits, const at::Tensor& targets) {
  const int64_t rows = logits.size(0), vocab_size = logits.size(1);
  const at::Tensor losses = at::zeros({rows}, logits.options());
  const auto* wanted = targets.const_data_ptr<int64_t>();
  const auto width = static_cast<size_t>(vocab_size);
  at::parallel_for(0, rows, GrainFor(logits), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* scores = logits.mutable_data_ptr<float>() + row * vocab_size;
      const int64_t target = wanted[row];
      if (target == kIgnored) {
        std::fill(scores, scores + width, 0.0F);
        continue;
      }
      TORCH_CHECK_INDEX(target >= 0 && target < vocab_size, "target ", target,
                        " is not below the vocabulary's size ", vocab_size);
      const float largest = LargestOf(scores, width, scores[0]);
      const float wanted_score = scores[target] - largest;
      const float sum = ExpOfDifference(scores, width, largest);
      losses.mutable_data_ptr<float>()[row] = std::log(sum) - wanted_score;
      ScaleRow(scores, width, 1.0F / sum);
      scores[target] -= 1.0F;
    }
  });
  return losses.sum();
}

/// The same with ATen's operations, on any device.
at::Tensor SumOnDevice(at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor counts = targets.ne(kIgnored);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor log_sums = logits.logsumexp(1, /*keepdim=*/true);
  const at::Tensor losses = (log_sums - logits.gather(1, index)).squeeze(1);
  const at::Tensor sum = losses.masked_fill(counts.logical_not(), 0.0).sum();
  logits.sub_(log_sums).exp_();
  logits.scatter_add_(1, index, at::full_like(log_sums, -1.0));
  logits.mul_(counts.unsqueeze(1));
  return sum;
}

class LinearCrossEntropyFunction : public autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            bool hidden_needs_it, bool weight_needs_it) {
    const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)}).contiguous();
    const at::Tensor wanted = targets.reshape({-1}).contiguous();
    const at::Tensor count = wanted.ne(kIgnored).sum().to(at::kFloat);
    at::Tensor loss = at::zeros({}, rows.options().dtype(at::kFloat));
    at::Tensor d_rows = hidden_needs_it ? at::empty_like(rows) : at::Tensor();
    at::Tensor d_weight = weight_needs_it
                              ? at::zeros(weight.sizes(), weight.options().dtype(at::kFloat))
                              : at::Tensor();
    const int64_t chunk = std::max<int64_t>(1, kLogitsOfChunk / weight.size(0));
    for (int64_t begin = 0; begin < rows.size(0); begin += chunk) {
      const int64_t end = std::min(rows.size(0), begin + chunk);
      const at::Tensor part = rows.slice(0, begin, end);
      at::Tensor logits = at::mm(part, weight.t()).to(at::kFloat);
      const at::Tensor part_targets = wanted.slice(0, begin, end);
      loss += HasRowKernels(logits) ? SumOnCpu(logits, part_targets)
                                    : SumOnDevice(logits, part_targets);
      if (hidden_needs_it || weight_needs_it) {
        logits.div_(count);
        const at::Tensor gradient = logits.to(rows.scalar_type());
        if (hidden_needs_it) {
          at::Tensor to_rows = d_rows.slice(0, begin, end);
          at::mm_out(to_rows, gradient, weight);
        }
        if (weight_needs_it) {
          AddWeightGradient(gradient, part, d_weight);
        }
      }
    }
    context->save_for_backward({hidden_needs_it ? d_rows.view(hidden.sizes()) : d_rows,
                                weight_needs_it ? d_weight.to(weight.scalar_type()) : d_weight});
    return loss / count;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    const autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& by = gradients[0];
    // The host knows what is on the CPU.
    const bool is_one = by.is_cpu() && by.item<float>() == 1.0F;
    const auto scaled = [&](const at::Tensor& gradient) {
      return is_one || !gradient.defined() ? gradient : gradient * by.to(gradient.scalar_type());
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(), at::Tensor()};
  }

 private:
  static void AddWeightGradient(const at::Tensor& gradient, const at::Tensor& rows,
                                at::Tensor& d_weight) {
    if (rows.scalar_type() == at::kFloat) {
      d_weight.addmm_(gradient.t(), rows);
    } else {
      d_weight.add_(at::mm(gradient.t(), rows));
    }
  }
};

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets) {
  const bool has_backward = at::GradMode::is_enabled();
  return LinearCrossEntropyFunction::apply(hidden, weight, targets,
                                           has_backward && hidden.requires_grad(),
                                           has_backward && weight.requires_grad());
}

}  // namespace fsdprun::worker::fused
