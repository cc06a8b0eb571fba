#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {

GradientDivision divide_gradients(std::optional<double> factor, int64_t ranks,
                                  at::ScalarType reduce_dtype) {
  const double divisor = factor.value_or(static_cast<double>(ranks));
  if (reduce_dtype == at::kHalf) {
    double before = 1;
    while (std::fmod(divisor, before) == 0 && divisor / before > before) {
      before *= 2;
    }
    return {ReduceOp::kSum, before, divisor / before};
  }
  if (divisor == static_cast<double>(ranks)) {
    return {ReduceOp::kAvg, 1, 1};
  }
  return {ReduceOp::kSum, 1, divisor};
}

bool ParamGroup::is_trainable() const {
  for (const Param& param : params_) {
    const auto tensor = param.tensor.lock();
    if (tensor && tensor->requires_grad()) {
      return true;
    }
  }
  return false;
}

bool ParamGroup::reduces_locally() const {
  return comm_->size() == 1 && reduce_dtype_ == dtype_ && division_.before * division_.after == 1;
}

void ParamGroup::begin_gradients() {
  if (collects_gradients_) {
    hold_gradient_slot();
    return;
  }
  if (is_reducing()) {
    context_->finish_reductions_through(this);
  }
  division_ = divide_gradients(divide_factor_, comm_->size(), reduce_dtype_);
  collects_in_place_ = reduces_locally();
  if (collects_in_place_) {
    if (!gradient_.defined()) {
      gradient_ = at::empty_like(shard_);
    }
    gradient_storage_.point_to(gradient_.data_ptr());
  } else {
    hold_gradient_slot();
  }
  // In place, gradients of earlier backwards are still there and are added to.
  const bool holds_gradients = collects_in_place_ && has_gradient_;
  for (Param& param : params_) {
    param.has_sum = holds_gradients;
    param.is_added_to = false;
  }
  collects_gradients_ = true;
}

void ParamGroup::hold_gradient_slot() {
  if (collects_in_place_ || gradient_slot_ != nullptr) {
    return;
  }
  gradient_slot_ = context_->acquire_gradient_slot(gradient_storage_.bytes());
  gradient_storage_.point_to(gradient_slot_->data());
}

void ParamGroup::release_empty_gradients() {
  const bool is_empty = std::none_of(params_.begin(), params_.end(),
                                     [](const Param& param) { return param.has_sum; });
  if (collects_gradients_ && gradient_slot_ != nullptr && is_empty) {
    gradient_storage_.poison();
    context_->release_gradient_slot(std::exchange(gradient_slot_, nullptr));
  }
}

void ParamGroup::accumulate_gradient(size_t index, const at::Tensor& gradient) {
  Param& param = params_[index];
  if (param.has_sum) {
    param.gradient.add_(gradient);
  } else {
    param.gradient.copy_(gradient);
    param.has_sum = true;
  }
  param.is_added_to = true;
}

void ParamGroup::zero_missing_gradients() {
  for (Param& param : params_) {
    if (!param.has_sum) {
      param.gradient.zero_();
    }
  }
  // Padding is part of the reduction and of the norm of the shard's gradient.
  char* base = static_cast<char*>(gathered_gradient_.data_ptr());
  const size_t element = gathered_gradient_.element_size();
  for (const plan::Range& gap : padding_) {
    if (device_.is_cpu()) {
      memset(base + gap.begin * element, 0, (gap.end - gap.begin) * element);
    } else {
      gathered_gradient_.narrow(0, gap.begin, gap.end - gap.begin).zero_();
    }
  }
}

void ParamGroup::start_reduction() {
  TORCH_INTERNAL_ASSERT(collects_gradients_ && !is_reducing());
  at::NoGradGuard no_grad;
  hold_gradient_slot();
  zero_missing_gradients();
  for (size_t i = 0; i < params_.size(); ++i) {
    own_uses_[i] |= params_[i].is_added_to ? 1 : 0;
  }
  context_->add_reduced(this);
  collects_gradients_ = false;
  if (collects_in_place_) {
    has_gradient_ = true;
    gradient_storage_.poison();
    return;
  }
  if (!gradient_.defined()) {
    gradient_ = at::empty_like(shard_);
  }
  at::Tensor output = gradient_;
  if (has_gradient_ || reduce_dtype_ != dtype_) {
    const int64_t element = static_cast<int64_t>(c10::elementSize(reduce_dtype_));
    reduced_slot_ = context_->acquire_gradient_slot(layout_.shard_numel * element);
    reduced_ = reduced_slot_->memory.view(reduce_dtype_);
    output = reduced_;
  }
  if (division_.before != 1) {
    gathered_gradient_.div_(division_.before);
  }
  comm_->name_next(purpose());
  reduction_ = comm_->reduce_scatter_into(output, gathered_gradient_, division_.op, Lane::kReduce);
  context_->add_reduction(this);
  RuntimeCounters& counters = context_->counters_in_place();
  counters.reductions += 1;
  counters.reduced_bytes += gradient_storage_.bytes();
}

void ParamGroup::finish_reduction() {
  TORCH_INTERNAL_ASSERT(is_reducing());
  reduction_->wait();
  reduction_.reset();
  at::NoGradGuard no_grad;
  at::Tensor arrived = reduced_slot_ != nullptr ? reduced_ : gradient_;
  if (division_.after != 1) {
    arrived.div_(division_.after);
  }
  if (reduced_slot_ != nullptr) {
    if (has_gradient_) {
      gradient_.add_(reduced_);
    } else {
      gradient_.copy_(reduced_);
    }
    reduced_.reset();
    context_->release_gradient_slot(reduced_slot_);
    reduced_slot_ = nullptr;
  }
  has_gradient_ = true;
  gradient_storage_.poison();
  context_->release_gradient_slot(gradient_slot_);
  gradient_slot_ = nullptr;
}

at::Tensor ParamGroup::gradient() const { return has_gradient_ ? gradient_ : at::Tensor(); }

void ParamGroup::add_uses(const uint8_t* uses_of_all_ranks) {
  for (size_t i = 0; i < params_.size(); ++i) {
    is_used_[i] |= uses_of_all_ranks[i];
    own_uses_[i] = 0;
  }
}

void ParamGroup::drop_gradient() {
  has_gradient_ = false;
  own_uses_.assign(params_.size(), 0);
  is_used_.assign(params_.size(), 0);
  if (!collects_gradients_) {
    return;
  }
  collects_gradients_ = false;
  gradient_storage_.poison();
  if (gradient_slot_ != nullptr) {
    context_->release_gradient_slot(gradient_slot_);
    gradient_slot_ = nullptr;
  }
}

}  // namespace fsdp
