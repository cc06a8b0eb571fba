#include "fsdp_runtime/src/engine/gradient_buffer.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {
namespace {

/// Copies a tensor that ATen would copy with one thread and as bytes; false if it is not such a
/// one. To choose how to copy a small tensor takes ATen several times as long as the copy.
bool copy_small(const at::Tensor& to, const at::Tensor& from) {
  const bool is_bytes = from.layout() == at::kStrided && from.is_cpu() && to.is_cpu() &&
                        from.scalar_type() == to.scalar_type() && from.is_contiguous() &&
                        !from.is_neg() && !from.is_conj();
  if (!is_bytes || from.numel() > at::internal::GRAIN_SIZE || from.numel() != to.numel()) {
    return false;
  }
  const void* data = from.const_data_ptr();
  if (data == nullptr) {
    return false;  // zeros that take no memory
  }
  std::memcpy(to.data_ptr(), data, from.nbytes());
  return true;
}

}  // namespace

GradientBuffer::GradientBuffer(const ShardStore& store, at::ScalarType dtype, Delivery delivery)
    : dtype_(dtype),
      delivery_(delivery),
      padding_(plan::padding_of(store.layout())),
      storage_(store.layout().numel() * static_cast<int64_t>(c10::elementSize(dtype)),
               store.device()) {
  for (size_t i = 0; i < store.size(); ++i) {
    params_.push_back({storage_.view(dtype, store.layout().params[i].offset, store.shape(i))});
  }
  if (delivery == Delivery::kInBatches) {
    for (const plan::Range& gap : padding_) {
      gaps_.push_back(storage_.view(dtype, gap.begin, {gap.end - gap.begin}));
    }
  }
}

void GradientBuffer::set_fqn(size_t index, const std::string& fqn) {
  const at::Tensor& view = params_[index].gradient;
  storage_.set_name(dtype_, view.storage_offset(), view.numel(), "the gradient of " + fqn);
}

void GradientBuffer::begin(RunContext& context) {
  prepare(context);
  start_collecting(/*holds_sum=*/false);
}

void GradientBuffer::begin_in(const at::Tensor& gradient, bool holds_sum) {
  in_place_ = gradient;
  storage_.point_to(gradient.data_ptr());
  start_collecting(holds_sum);
}

void GradientBuffer::start_collecting(bool holds_sum) {
  for (Param& param : params_) {
    param.has_sum = holds_sum;
    param.is_added_to = false;
  }
  is_collecting_ = true;
}

void GradientBuffer::prepare(RunContext& context) {
  if (delivery_ == Delivery::kAtOnce) {
    hold_memory(context);
  }
}

void GradientBuffer::hold_memory(RunContext& context) {
  if (!in_place_.defined() && !slot_) {
    slot_ = context.acquire_gradient_slot(storage_.bytes());
    storage_.point_to(slot_->data());
  }
}

void GradientBuffer::release_if_empty() {
  const bool is_empty = std::none_of(params_.begin(), params_.end(),
                                     [](const Param& param) { return param.has_sum; });
  if (is_collecting_ && slot_ && is_empty) {
    end_loans();
    storage_.poison();
    slot_.reset();
  }
}

at::Tensor GradientBuffer::lend(size_t index, at::ScalarType dtype) {
  Param& param = params_[index];
  const bool has_memory = in_place_.defined() || slot_;
  if (delivery_ != Delivery::kAtOnce || dtype != dtype_ || !is_collecting_ || !has_memory ||
      param.has_sum || !param.loan.expired()) {
    return {};
  }
  at::Tensor lent = param.gradient.variable_data();
  param.is_lent = true;
  param.loan = lent.getIntrusivePtr();
  return lent;
}

c10::weak_intrusive_ptr<c10::TensorImpl> GradientBuffer::no_loan() {
  return c10::weak_intrusive_ptr<c10::TensorImpl>(c10::intrusive_ptr<c10::TensorImpl>());
}

void GradientBuffer::end_loan(Param& param) {
  if (c10::intrusive_ptr<c10::TensorImpl> loan = param.loan.lock()) {
    at::NoGradGuard no_grad;
    at::Tensor lent(std::move(loan));
    lent.set_data(lent.clone());
  }
  param.loan = no_loan();
  param.is_lent = false;
}

void GradientBuffer::end_loans() {
  for (Param& param : params_) {
    end_loan(param);
  }
}

void GradientBuffer::accumulate(RunContext& context, size_t index, const at::Tensor& gradient) {
  Param& param = params_[index];
  param.is_added_to = true;
  // Whoever had the loan may have passed on another tensor of the same memory.
  if (!param.has_sum && param.is_lent &&
      gradient.const_data_ptr() == param.gradient.const_data_ptr()) {
    param.has_sum = true;  // it has been produced there
    return;
  }
  end_loan(param);
  context.counters_in_place().moved_gradients += 1;
  if (delivery_ == Delivery::kInBatches) {
    if (param.waits.defined()) {  // a backward inside this one, as of a checkpoint
      write(context);
    }
    param.waits = gradient;
    return;
  }
  at::NoGradGuard no_grad;  // a backward that creates a graph has grad mode
  if (param.has_sum) {
    param.gradient.add_(gradient);
  } else {
    if (!copy_small(param.gradient, gradient)) {
      param.gradient.copy_(gradient);
    }
    param.has_sum = true;
  }
}

void GradientBuffer::write(RunContext& context) {
  if (std::none_of(params_.begin(), params_.end(),
                   [](const Param& param) { return param.waits.defined(); })) {
    return;
  }
  hold_memory(context);
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  std::vector<at::Tensor> copied;
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> added;
  for (Param& param : params_) {
    if (param.waits.defined()) {
      (param.has_sum ? sums : copies).push_back(param.gradient);
      (param.has_sum ? added : copied).push_back(std::exchange(param.waits, {}));
      param.has_sum = true;
    }
  }
  if (!copies.empty()) {
    at::_foreach_copy_(copies, copied);
  }
  if (!sums.empty()) {
    at::_foreach_add_(sums, added);
  }
}

void GradientBuffer::zero_missing(const at::Tensor& flat) {
  if (delivery_ == Delivery::kInBatches) {
    std::vector<at::Tensor> missing = gaps_;
    for (Param& param : params_) {
      if (!param.has_sum) {
        missing.push_back(param.gradient);
      }
    }
    if (!missing.empty()) {
      at::_foreach_zero_(missing);
    }
    return;
  }
  for (Param& param : params_) {
    if (!param.has_sum) {
      param.gradient.zero_();
    }
  }
  char* base = static_cast<char*>(flat.data_ptr());
  const size_t element = flat.element_size();
  for (const plan::Range& gap : padding_) {
    memset(base + gap.begin * element, 0, (gap.end - gap.begin) * element);
  }
}

UnshardedGradients GradientBuffer::take() {
  TORCH_INTERNAL_ASSERT(is_collecting_ && (in_place_.defined() || slot_));
  UnshardedGradients whole;
  whole.flat = in_place_.defined() ? in_place_ : slot_->as(dtype_);
  end_loans();
  zero_missing(whole.flat);
  whole.slot = std::move(slot_);
  stop_collecting();
  return whole;
}

void GradientBuffer::drop() {
  if (is_collecting_) {
    end_loans();
    slot_.reset();
    for (Param& param : params_) {
      param.waits.reset();
    }
    stop_collecting();
  }
}

void GradientBuffer::drop(size_t index) {
  if (is_collecting_) {
    Param& param = params_[index];
    end_loan(param);
    param.waits.reset();
    param.has_sum = false;
    param.is_added_to = false;
  }
}

void GradientBuffer::stop_collecting() {
  storage_.poison();
  in_place_.reset();
  is_collecting_ = false;
}

}  // namespace fsdp
