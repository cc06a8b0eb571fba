#include "fsdp_runtime/src/engine/shard_store.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fsdp_runtime/src/engine/disk_memory.h"

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

plan::GroupLayout layout_of(const std::vector<NamedParameter>& params, int64_t ranks,
                            const ShardStoreOptions& options) {
  const auto element = static_cast<int64_t>(c10::elementSize(options.compute_dtype));
  if (!params.front().shard_dim) {
    return plan::make_group_layout(shapes_of(params), ranks, options.page_bytes / element);
  }
  // Peers read the one or the other, and which is not known before: see window_dtype().
  const auto own = static_cast<int64_t>(params.front().tensor.element_size());
  const int64_t page_numel = options.page_bytes / std::min(element, own);
  std::vector<int64_t> dims;
  for (const NamedParameter& param : params) {
    dims.push_back(param.shard_dim.value());
  }
  return plan::make_chunked_layout(shapes_of(params), dims, ranks, page_numel);
}

std::vector<std::vector<int64_t>> local_shapes_of(const plan::GroupLayout& layout,
                                                  const std::vector<NamedParameter>& params,
                                                  int64_t rank) {
  const std::vector<plan::ParamSlice> slices = plan::slices_of_rank(layout, rank);
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = 0; i < params.size(); ++i) {
    shapes.push_back(layout.chunks.empty()
                         ? std::vector<int64_t>{slices[i].numel()}
                         : plan::local_shape(layout, i, params[i].tensor.sizes().vec(), rank));
  }
  return shapes;
}

/// Of what peers read: what is copied out is cast by that.
at::ScalarType window_dtype(const std::vector<NamedParameter>& params,
                            const plan::GroupLayout& layout, const ShardStoreOptions& options) {
  return layout.copies_out() ? params.front().tensor.scalar_type() : options.compute_dtype;
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
    : layout_(layout_of(params, comm.size(), options)),
      slices_(plan::slices_of_rank(layout_, comm.rank())),
      held_(plan::shards_of_rank(layout_, shapes_of(params), comm.rank(), options.mesh_axes)),
      local_shapes_(local_shapes_of(layout_, params, comm.rank())),
      memory_(options.memory),
      device_(comm.device()),
      is_offloaded_(memory_ && comm.is_stream_ordered()),
      window_(!memory_ && fills_windows_of(comm, layout_, window_dtype(params, layout_, options))
                  ? comm.make_gather_window(layout_.shard_numel,
                                            window_dtype(params, layout_, options),
                                            params.front().fqn)
                  : nullptr) {
  at::NoGradGuard no_grad;
  const at::ScalarType dtype = params.front().tensor.scalar_type();
  if (memory_) {
    shard_ = memory_->zeros(layout_.shard_numel, dtype, "the shard of " + params.front().fqn);
  } else {
    shard_ = window_ && window_dtype(params, layout_, options) == dtype
                 ? window_->own()
                 : comm.empty_for_comm(layout_.shard_numel, dtype);
    shard_.zero_();
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (!is_unmaterialized(params[i].tensor)) {
      copy_part_of(params[i].tensor.detach(), part_of(shard_, i));
    }
  }
  release_pages(shard_);
}

WorkPtr ShardStore::copy_to_device(Collectives& comm, const at::Tensor& range,
                                   const std::string& purpose) {
  copy_ = comm.run_on_lane({Lane::kGather, purpose}, [shard = shard_, range] {
    at::NoGradGuard no_grad;
    if (range.scalar_type() == shard.scalar_type()) {
      range.copy_(shard, /*non_blocking=*/true);
      return;
    }
    // ATen would cast on the host.
    const at::Tensor uncast = at::empty_like(range, range.options().dtype(shard.scalar_type()));
    uncast.copy_(shard, /*non_blocking=*/true);
    range.copy_(uncast);
  });
  return copy_;
}

void ShardStore::wait_for_copies() {
  if (const WorkPtr copy = std::exchange(copy_, nullptr)) {
    copy->wait_on_host();
  }
}

at::Tensor ShardStore::zeros_beside(int64_t numel, const std::string& content) const {
  // Page-locked memory is scarce, and what no device copies does without.
  return is_on_disk() ? memory_->zeros(numel, dtype(), content) : shard_.new_zeros({numel});
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
  wait_for_copies();
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
  wait_for_copies();
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
