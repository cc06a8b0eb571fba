#include "fsdp_runtime/src/engine/shard_store.h"

#include <ATen/ATen.h>

namespace fsdp {
namespace {

std::vector<plan::ParamShape> shapes_of(const std::vector<NamedParameter>& params) {
  std::vector<plan::ParamShape> shapes;
  shapes.reserve(params.size());
  for (const NamedParameter& param : params) {
    shapes.push_back({param.fqn, param.tensor.sizes().vec()});
  }
  return shapes;
}

/// Whether the shards are whole pages of the backend's windows.
bool fills_windows_of(const Collectives& comm, const plan::GroupLayout& layout,
                      at::ScalarType dtype) {
  const int64_t alignment = comm.window_alignment();
  const int64_t bytes = layout.shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  return layout.is_paged && alignment > 0 && bytes % alignment == 0;
}

bool is_unmaterialized(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.storage().data() == nullptr;
}

}  // namespace

ShardStore::ShardStore(const std::vector<NamedParameter>& params, Collectives& comm,
                       const ShardStoreOptions& options)
    : layout_(plan::make_group_layout(
          shapes_of(params), comm.size(),
          options.page_bytes / static_cast<int64_t>(c10::elementSize(options.compute_dtype)))),
      slices_(plan::slices_of_rank(layout_, comm.rank())),
      held_(plan::shards_of_rank(layout_, shapes_of(params), comm.rank(), options.mesh_axes)),
      window_(fills_windows_of(comm, layout_, options.compute_dtype)
                  ? comm.make_gather_window(layout_.shard_numel, options.compute_dtype,
                                            params.front().fqn)
                  : nullptr) {
  at::NoGradGuard no_grad;
  const at::ScalarType dtype = params.front().tensor.scalar_type();
  shard_ = window_ && options.compute_dtype == dtype
               ? window_->own()
               : comm.empty_for_comm(layout_.shard_numel, dtype);
  shard_.zero_();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!is_unmaterialized(params[i].tensor)) {
      copy_part_of(params[i].tensor.detach(), part_of(shard_, i));
    }
  }
}

LocalShard ShardStore::part_of(const at::Tensor& flat, size_t index) const {
  const plan::ParamSlice& slice = slices_[index];
  return {held_[index],
          flat.defined() ? flat.narrow(0, slice.shard_offset, slice.numel()) : at::Tensor()};
}

at::Tensor ShardStore::prepare_gather(const at::Tensor& range) const {
  if (range.scalar_type() == dtype()) {
    return shard_;
  }
  range.copy_(shard_);
  return range;
}

at::Tensor ShardStore::copy_for_peers() const {
  return window_ && is_window_a_copy() ? window_->own() : at::Tensor();
}

bool ShardStore::is_published(int64_t write_epoch) const {
  return published_in_ && (!is_held_ || published_in_ == write_epoch);
}

void ShardStore::set_published(int64_t write_epoch) {
  published_in_ = write_epoch;
  is_held_ = !given_.expired();
}

void ShardStore::publish(int64_t write_epoch) {
  if (is_window_a_copy() && !is_published(write_epoch)) {
    window_->wait_for_readers();
    window_->own().copy_(shard_);
    set_published(write_epoch);
  }
}

at::Tensor ShardStore::handed_out() {
  std::shared_ptr<const at::Tensor> given = given_.lock();
  if (!given) {
    given = std::make_shared<const at::Tensor>(shard_);
    given_ = given;
  }
  published_in_.reset();
  return at::from_blob(
      shard_.data_ptr(), shard_.sizes(), [given](void*) mutable { given.reset(); },
      shard_.options());
}

void ShardStore::prepare_to_write() {
  if (!window_) {
    return;
  }
  if (is_window_a_copy()) {
    published_in_.reset();
  } else {
    window_->wait_for_readers();
  }
}

void ShardStore::begin_update() {
  if (window_) {
    window_->wait_for_readers();
    is_update_of_published_ = published_in_ && !is_held_;
    published_in_.reset();
  }
}

void ShardStore::end_update(int64_t write_epoch) {
  if (is_update_of_published_) {
    set_published(write_epoch);
    is_update_of_published_ = false;
  }
}

void copy_part_of(const at::Tensor& whole, const LocalShard& shard) {
  TORCH_CHECK(shard.local.defined(), "copy_part_of: ", shard.fqn,
              " has no local tensor to copy to");
  TORCH_CHECK(whole.sizes() == at::IntArrayRef(shard.global_shape), "copy_part_of: ", shard.fqn,
              " has shape ", at::IntArrayRef(shard.global_shape), ", got a tensor of shape ",
              whole.sizes());
  int64_t begin = 0;
  for (const Box& box : shard.boxes) {
    at::Tensor piece = whole;
    for (size_t d = 0; d < box.sizes.size(); ++d) {
      piece = piece.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
    }
    shard.local.narrow(0, begin, piece.numel()).view(piece.sizes()).copy_(piece);
    begin += piece.numel();
  }
}

}  // namespace fsdp
