#include "fsdp_runtime/src/state_dict/whole_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/disk_memory.h"

namespace fsdp {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;

/// Copies to `own` what it has of this rank's `parts`, if it begins with element `begin` of the
/// shard.
void collect(const ShardStore& store, const std::vector<at::Tensor>& parts, int64_t begin,
             const at::Tensor& own) {
  own.zero_();  // of parameters without a part, and between them
  for (size_t i = 0; i < parts.size(); ++i) {
    const plan::ParamSlice& slice = store.slice(i);
    const int64_t first = std::max(begin, slice.shard_offset);
    const int64_t last = std::min(begin + own.numel(), slice.shard_offset + slice.numel());
    if (parts[i].defined() && first < last) {
      own.narrow(0, first - begin, last - first)
          .copy_(parts[i].reshape({-1}).narrow(0, first - slice.shard_offset, last - first));
      release_pages(parts[i]);
    }
  }
}

/// Copies from `piece`, which begins with element `begin` of the shard of `rank`, what it has of
/// each parameter.
void distribute(const plan::GroupLayout& layout, const at::Tensor& piece, int64_t rank,
                int64_t begin, const std::vector<at::Tensor>& whole) {
  for (size_t i = 0; i < whole.size(); ++i) {
    if (!whole[i].defined()) {
      continue;
    }
    for (const plan::RunBlock& block :
         plan::runs_in_shard(layout, i, rank, {begin, begin + piece.numel()})) {
      const at::Tensor from = piece.narrow(0, block.shard_begin - begin, block.numel());
      whole[i]
          .as_strided({block.runs, block.run_numel}, {block.param_stride, 1},
                      whole[i].storage_offset() + block.param_begin)
          .copy_(from.view({block.runs, block.run_numel}));
    }
  }
}

}  // namespace

at::Tensor empty_whole(const ParamGroup& group, size_t index, at::ScalarType dtype, bool on_cpu) {
  const ShardStore& store = group.store();
  const c10::Device device = on_cpu ? c10::Device(c10::kCPU) : store.device();
  return at::empty({store.layout().params[index].numel}, at::TensorOptions(dtype).device(device));
}

std::vector<at::Tensor> parameter_parts(const ParamGroup& group) {
  const ShardStore& store = group.store();
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < group.size(); ++i) {
    parts.push_back(store.shard().narrow(0, store.slice(i).shard_offset, store.slice(i).numel()));
  }
  return parts;
}

void gather_whole(const ParamGroup& group, const std::vector<at::Tensor>& parts,
                  const std::vector<at::Tensor>& whole, at::ScalarType dtype,
                  const std::string& purpose) {
  const ShardStore& store = group.store();
  const plan::GroupLayout& layout = store.layout();
  Collectives& comm = *group.comm();
  const auto row_bytes = layout.ranks * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t piece_numel = std::max<int64_t>(kPieceBytes / row_bytes, 1);
  for (int64_t begin = 0; begin < layout.shard_numel; begin += piece_numel) {
    const int64_t numel = std::min(piece_numel, layout.shard_numel - begin);
    const at::Tensor all =
        at::empty({layout.ranks * numel}, at::TensorOptions(dtype).device(store.device()));
    const at::Tensor own = all.narrow(0, comm.rank() * numel, numel);
    collect(store, parts, begin, own);
    comm.all_gather_into(all, own, {Lane::kGather, purpose})->wait();
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      distribute(layout, all.narrow(0, rank * numel, numel), rank, begin, whole);
    }
    comm.check_results(purpose);
  }
}

at::Tensor copy_of(const at::Tensor& tensor, bool to_cpu) {
  const c10::Device device = to_cpu ? c10::Device(c10::kCPU) : tensor.device();
  at::Tensor copy = tensor.detach().to(tensor.options().device(device), /*non_blocking=*/false,
                                       /*copy=*/true);
  release_pages(tensor);
  return copy;
}

}  // namespace fsdp
