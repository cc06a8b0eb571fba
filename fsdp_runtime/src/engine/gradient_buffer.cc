#include "fsdp_runtime/src/engine/gradient_buffer.h"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fsdp_runtime/src/engine/chunk_views.h"
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
    : store_(store),
      dtype_(dtype),
      delivery_(delivery),
      storage_(store.layout().numel() * static_cast<int64_t>(c10::elementSize(dtype)),
               store.device()) {
  for (size_t i = 0; i < store.size(); ++i) {
    add_views(i);
  }
  const plan::GroupLayout& layout = store.layout();
  if (delivery_ == Delivery::kAtOnce) {
    padding_ = plan::padding_of(layout);
  } else if (layout.copies_out()) {
    ChunkPadding padding = padding_in(storage_.view(dtype, 0, {layout.numel()}), layout);
    gaps_ = std::move(padding.blocks);
    listed_gaps_ = padding.elements.numel() > 0 ? std::move(padding.elements) : at::Tensor();
  } else {
    for (const plan::Range& gap : plan::padding_of(layout)) {
      gaps_.push_back(storage_.view(dtype, gap.begin, {gap.end - gap.begin}));
    }
  }
}

void GradientBuffer::add_views(size_t index) {
  const plan::GroupLayout& layout = store_.layout();
  Param& param = params_.emplace_back();
  if (layout.copies_out()) {
    const at::Tensor flat = storage_.view(dtype_, 0, {layout.numel()});
    param.pieces = pieces_in(flat, layout, index, store_.shape(index));
  } else {
    param.gradient = storage_.view(dtype_, layout.params[index].offset, store_.shape(index));
  }
}

void GradientBuffer::add_pieces(const Param& param, std::vector<at::Tensor>& to) {
  if (param.gradient.defined()) {
    to.push_back(param.gradient);
  } else {
    to.insert(to.end(), param.pieces.begin(), param.pieces.end());
  }
}

void GradientBuffer::add_pieces_of(size_t index, const at::Tensor& gradient,
                                   std::vector<at::Tensor>& to) const {
  if (params_[index].gradient.defined()) {
    to.push_back(gradient);
    return;
  }
  const at::Tensor dense = gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
  const std::vector<at::Tensor> pieces = pieces_of(dense, store_.layout().chunks[index]);
  to.insert(to.end(), pieces.begin(), pieces.end());
}

void GradientBuffer::set_fqn(size_t index, const std::string& fqn) {
  const std::string name = "the gradient of " + fqn;
  const plan::GroupLayout& layout = store_.layout();
  if (!layout.copies_out()) {
    storage_.set_name(dtype_, layout.params[index].offset, layout.params[index].numel, name);
    return;
  }
  const plan::DimChunks& chunks = layout.chunks[index];
  for (int64_t rank = 0; rank < layout.ranks; ++rank) {
    storage_.set_name(dtype_, rank * layout.shard_numel + chunks.shard_offset,
                      plan::numel_of_rank(chunks, rank), name);
  }
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
  const bool has_memory = (in_place_.defined() || slot_) && param.gradient.defined();
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

void GradientBuffer::accumulate_pieces(size_t index, const at::Tensor& gradient) {
  Param& param = params_[index];
  std::vector<at::Tensor> added;
  add_pieces_of(index, gradient, added);
  for (size_t i = 0; i < added.size(); ++i) {
    if (param.has_sum) {
      param.pieces[i].add_(added[i]);
    } else {
      param.pieces[i].copy_(added[i]);
    }
  }
  param.has_sum = true;
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
  if (!param.gradient.defined()) {
    accumulate_pieces(index, gradient);
  } else if (param.has_sum) {
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
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = params_[i];
    if (param.waits.defined()) {
      add_pieces(param, param.has_sum ? sums : copies);
      add_pieces_of(i, std::exchange(param.waits, {}), param.has_sum ? added : copied);
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
    for (const Param& param : params_) {
      if (!param.has_sum) {
        add_pieces(param, missing);
      }
    }
    if (!missing.empty()) {
      at::_foreach_zero_(missing);
    }
    if (listed_gaps_.defined()) {
      flat.index_fill_(0, listed_gaps_, 0);
    }
    return;
  }
  for (const Param& param : params_) {
    if (!param.has_sum) {
      std::vector<at::Tensor> missing;
      add_pieces(param, missing);
      for (at::Tensor& gradient : missing) {
        gradient.zero_();
      }
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
