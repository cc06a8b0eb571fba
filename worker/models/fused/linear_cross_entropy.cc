#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cmath>

#include "worker/models/fused/cross_entropy_chunks.h"
#include "worker/models/fused/cuda/device_rows.h"
#include "worker/models/fused/ops.h"
#include "worker/models/fused/rows.h"

namespace fsdprun::worker::fused {
namespace {

namespace autograd = torch::autograd;

/// Of a chunk of rows: the sum of the cross entropies of those that count. `logits`: float32
/// [rows, vocab_size]; becomes the gradient of that sum over `count`, which is 0-dim, float32.
at::Tensor SumOnCpu(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& count) {
  const int64_t rows = logits.size(0), vocab_size = logits.size(1);
  const at::Tensor losses = at::zeros({rows}, logits.options());
  const auto* wanted = targets.const_data_ptr<int64_t>();
  const auto width = static_cast<size_t>(vocab_size);
  const float share = 1.0F / count.item<float>();
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
      ScaleRow(scores, width, share / sum);
      scores[target] -= share;
    }
  });
  return losses.sum();
}

/// The same with ATen's operations, on any device: those check the targets there.
at::Tensor SumOnDevice(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& count) {
  const at::Tensor is_ignored = targets.eq(kIgnored).unsqueeze(1);
  const at::Tensor index = targets.unsqueeze(1).masked_fill(is_ignored, 0);
  logits.sub_(logits.amax(1, /*keepdim=*/true));
  const at::Tensor wanted_scores = logits.gather(1, index);
  const at::Tensor sums = logits.exp_().sum(1, /*keepdim=*/true);
  const at::Tensor losses = (sums.log() - wanted_scores).masked_fill(is_ignored, 0.0);
  logits.div_(sums * count);
  logits.scatter_add_(1, index, (-1 / count).expand_as(index));
  logits.masked_fill_(is_ignored, 0.0);
  return losses.sum();
}

/// The same by what the logits' device has. They are in the dtype of the rows, and the gradient in
/// that or in float32.
at::Tensor SumOf(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& count,
                 bool has_row_kernels) {
  if (has_row_kernels && HasDeviceKernels(logits)) {
    return CrossEntropyOnDevice(DeviceKernels(), logits, targets, count).sum();
  }
  logits = logits.to(at::kFloat);
  return has_row_kernels && HasRowKernels(logits) ? SumOnCpu(logits, targets, count)
                                                  : SumOnDevice(logits, targets, count);
}

/// Of the weight: a sum over chunks, in float32.
class WeightGradient {
 public:
  /// `gradient`: of the logits of `rows`.
  void Add(const at::Tensor& gradient, const at::Tensor& rows) {
    if (rows.scalar_type() == at::kFloat) {
      sum_ = sum_.defined() ? sum_.addmm_(gradient.t(), rows) : at::mm(gradient.t(), rows);
    } else if (!product_.defined()) {
      product_ = at::mm(gradient.t(), rows);
    } else {
      sum_ = sum_.defined() ? sum_ : product_.to(at::kFloat);
      sum_.add_(at::mm_out(product_, gradient.t(), rows));
    }
  }
  /// In the dtype of the rows; undefined if there were none.
  at::Tensor Take() { return product_.defined() && sum_.defined() ? product_.copy_(sum_) : Only(); }

 private:
  at::Tensor Only() const { return product_.defined() ? product_ : sum_; }

  at::Tensor sum_;      // undefined in another dtype until there are two chunks
  at::Tensor product_;  // of a chunk, in the dtype of the rows; undefined in float32
};

struct Wanted {
  bool of_hidden = false;
  bool of_weight = false;
};

class LinearCrossEntropyFunction : public autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            const CrossEntropyChunks& chunks, const Wanted& gradients) {
    const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)}).contiguous();
    const at::Tensor wanted = targets.reshape({-1}).contiguous();
    const at::Tensor count = wanted.ne(kIgnored).sum().to(at::kFloat);
    at::Tensor loss = at::zeros({}, rows.options().dtype(at::kFloat));
    at::Tensor d_rows = gradients.of_hidden ? at::empty_like(rows) : at::Tensor();
    WeightGradient weight_gradient;
    for (int64_t begin = 0; begin < rows.size(0); begin += chunks.rows) {
      const int64_t end = std::min(rows.size(0), begin + chunks.rows);
      const at::Tensor part = rows.slice(0, begin, end);
      at::Tensor logits = at::mm(part, weight.t());
      loss += SumOf(logits, wanted.slice(0, begin, end), count, chunks.has_row_kernels);
      const at::Tensor gradient = logits.to(rows.scalar_type());
      if (gradients.of_hidden) {
        at::Tensor to_rows = d_rows.slice(0, begin, end);
        at::mm_out(to_rows, gradient, weight);
      }
      if (gradients.of_weight) {
        weight_gradient.Add(gradient, part);
      }
    }
    at::Tensor d_weight = weight_gradient.Take();
    if (gradients.of_weight && !d_weight.defined()) {
      d_weight = at::zeros_like(weight);
    }
    context->save_for_backward(
        {gradients.of_hidden ? d_rows.view(hidden.sizes()) : d_rows, d_weight});
    return loss / count;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    RefuseSecondDerivative("LinearCrossEntropy");
    const autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& by = gradients[0];
    // The host knows what is on the CPU.
    const bool is_one = by.is_cpu() && by.item<float>() == 1.0F;
    const bool is_kept = autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](at::Tensor gradient) {
      if (is_one || !gradient.defined()) {
        return gradient;
      }
      return is_kept ? gradient * by : gradient.mul_(by);
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, const CrossEntropyChunks& chunks) {
  const bool has_backward = at::GradMode::is_enabled();
  return LinearCrossEntropyFunction::apply(
      hidden, weight, targets, chunks,
      Wanted{has_backward && hidden.requires_grad(), has_backward && weight.requires_grad()});
}

at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets) {
  return LinearCrossEntropy(hidden, weight, targets,
                            ChunksFor(weight.size(0), /*is_on_cpu=*/weight.is_cpu()));
}

}  // namespace fsdprun::worker::fused
