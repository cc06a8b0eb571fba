#include "fsdp_runtime/src/engine/sharded_leaves.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace fsdp {
ShardedLeaves::ShardedLeaves(ShardStore& store, bool requires_grad) : store_(store) {
  const at::Tensor shard = store.handed_out();
  leaves_.reserve(store.size());
  for (size_t i = 0; i < store.size(); ++i) {
    leaves_.push_back(store.part_of(shard, i)
                          .local.view(store.local_shape(i))
                          .detach()
                          .requires_grad_(requires_grad));
  }
}

void ShardedLeaves::make_gradients(const at::Tensor& flat) {
  gradients_.clear();
  memory_ = flat.const_data_ptr();
  for (size_t i = 0; i < leaves_.size(); ++i) {
    // Not a view for autograd, which zero_grad() could not detach in place.
    const at::Tensor part = store_.part_of(flat, i).local;
    gradients_.push_back(at::empty({0}, part.options()));
    gradients_.back().set_(part.storage(), part.storage_offset(), store_.local_shape(i));
  }
}

void ShardedLeaves::show(const GradientReducer& reducer, const ParameterUses& uses) {
  is_shown_ = true;
  at::NoGradGuard no_grad;
  const at::Tensor flat = reducer.gradient();
  if (flat.defined() && (gradients_.empty() || memory_ != flat.const_data_ptr())) {
    make_gradients(flat);
  }
  for (size_t i = 0; i < leaves_.size(); ++i) {
    leaves_[i].mutable_grad() = flat.defined() && uses.is_used(i) ? gradients_[i] : at::Tensor();
  }
}

void ShardedLeaves::take_back(GradientReducer& reducer, ParameterUses& uses) {
  if (!std::exchange(is_shown_, false) || !reducer.gradient().defined()) {
    return;
  }
  if (std::none_of(leaves_.begin(), leaves_.end(),
                   [](const at::Tensor& leaf) { return leaf.grad().defined(); })) {
    reducer.forget_gradient();
    for (size_t i = 0; i < leaves_.size(); ++i) {
      uses.forget(i);
    }
    return;
  }
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const at::Tensor& shown = leaves_[i].grad();
    if (!shown.defined()) {
      gradients_[i].zero_();
      uses.forget(i);
    } else if (!shown.is_same(gradients_[i])) {
      gradients_[i].copy_(shown);
    }
  }
}

void ShardedLeaves::take_replaced() {
  if (!is_shown_ || gradients_.empty()) {
    return;
  }
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& shown = leaves_[i].mutable_grad();
    if (shown.defined() && !shown.is_same(gradients_[i])) {
      gradients_[i].copy_(shown);
      shown = gradients_[i];
    }
  }
}

void ShardedLeaves::clear() {
  is_shown_ = false;
  for (const at::Tensor& leaf : leaves_) {
    leaf.mutable_grad().reset();
  }
}

}  // namespace fsdp
