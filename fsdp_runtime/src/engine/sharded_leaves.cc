#include "fsdp_runtime/src/engine/sharded_leaves.h"

#include <ATen/ATen.h>

#include <utility>

namespace fsdp {
namespace {

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.const_data_ptr() == b.const_data_ptr();
}

}  // namespace

ShardedLeaves::ShardedLeaves(ShardStore& store, bool requires_grad) : store_(store) {
  const at::Tensor shard = store.handed_out();
  leaves_.reserve(store.size());
  for (size_t i = 0; i < store.size(); ++i) {
    leaves_.push_back(store.part_of(shard, i).local.detach().requires_grad_(requires_grad));
  }
}

at::Tensor ShardedLeaves::gradient_of(const GradientReducer& reducer, size_t index) const {
  // Not a view for autograd, which zero_grad() could not detach in place.
  const at::Tensor part = store_.part_of(reducer.gradient(), index).local;
  at::Tensor gradient = at::empty({0}, part.options());
  gradient.set_(part.storage(), part.storage_offset(), part.sizes());
  return gradient;
}

void ShardedLeaves::show(const GradientReducer& reducer, const ParameterUses& uses) {
  is_shown_ = true;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    at::Tensor& shown = leaves_[i].mutable_grad();
    if (!reducer.gradient().defined() || !uses.is_used(i)) {
      shown.reset();
    } else if (at::Tensor own = gradient_of(reducer, i); !is_same_memory(shown, own)) {
      shown = std::move(own);
    }
  }
}

void ShardedLeaves::take_back(GradientReducer& reducer, ParameterUses& uses) {
  if (!std::exchange(is_shown_, false) || !reducer.gradient().defined()) {
    return;
  }
  at::NoGradGuard no_grad;
  bool is_any_left = false;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const at::Tensor& shown = leaves_[i].mutable_grad();
    at::Tensor own = gradient_of(reducer, i);
    if (!shown.defined()) {
      own.zero_();
      uses.forget(i);
    } else if (!is_same_memory(shown, own)) {
      own.copy_(shown);
    }
    is_any_left = is_any_left || uses.is_used(i);
  }
  if (!is_any_left) {
    reducer.forget_gradient();
  }
}

void ShardedLeaves::clear() {
  is_shown_ = false;
  for (const at::Tensor& leaf : leaves_) {
    leaf.mutable_grad().reset();
  }
}

}  // namespace fsdp
