#include "fsdp_runtime/src/engine/chunk_views.h"

#include <ATen/ATen.h>

#include <cstdint>

namespace fsdp {
namespace {

/// Elements of a block of padding that are listed one by one.
constexpr int64_t kMostListed = 16384;

}  // namespace

std::vector<at::Tensor> pieces_of(const at::Tensor& whole, const plan::DimChunks& chunks) {
  std::vector<at::Tensor> pieces;
  for (const plan::ChunkBlock& block : plan::blocks_of(chunks)) {
    pieces.push_back(
        whole.narrow(chunks.dim, block.first_rank * chunks.chunk, block.ranks * block.rows)
            .unflatten(chunks.dim, {block.ranks, block.rows}));
  }
  return pieces;
}

std::vector<at::Tensor> pieces_in(const at::Tensor& flat, const plan::GroupLayout& layout,
                                  size_t index, at::IntArrayRef shape) {
  const plan::DimChunks& chunks = layout.chunks[index];
  std::vector<at::Tensor> pieces;
  for (const plan::ChunkBlock& block : plan::blocks_of(chunks)) {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t stride = block.rows * chunks.inner * chunks.outer;
    for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
      if (d == chunks.dim) {
        sizes.push_back(block.ranks);
        strides.push_back(layout.shard_numel);
      }
      sizes.push_back(d == chunks.dim ? block.rows : shape[d]);
      stride /= sizes.back();
      strides.push_back(stride);
    }
    const int64_t begin = block.first_rank * layout.shard_numel + chunks.shard_offset;
    pieces.push_back(flat.as_strided(sizes, strides, flat.storage_offset() + begin));
  }
  return pieces;
}

void copy_pieces(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(from[i]);
  }
}

at::Tensor copy_of_whole(const at::Tensor& flat, const plan::GroupLayout& layout, size_t index,
                         at::IntArrayRef shape) {
  if (!layout.copies_out()) {
    const plan::ParamPlacement& place = layout.params[index];
    return flat.narrow(0, place.offset, place.numel).view(shape).clone();
  }
  at::Tensor whole = at::empty(shape, flat.options());
  copy_pieces(pieces_of(whole, layout.chunks[index]), pieces_in(flat, layout, index, shape));
  return whole;
}

void copy_whole_to(const at::Tensor& flat, const plan::GroupLayout& layout, size_t index,
                   const at::Tensor& whole) {
  if (!layout.copies_out()) {
    const plan::ParamPlacement& place = layout.params[index];
    flat.narrow(0, place.offset, place.numel).view(whole.sizes()).copy_(whole);
    return;
  }
  copy_pieces(pieces_in(flat, layout, index, whole.sizes()),
              pieces_of(whole, layout.chunks[index]));
}

ChunkPadding padding_in(const at::Tensor& flat, const plan::GroupLayout& layout) {
  ChunkPadding padding;
  std::vector<int64_t> elements;
  for (const plan::PaddingBlock& block : plan::padding_blocks(layout)) {
    const int64_t begin = block.first_rank * layout.shard_numel + block.range.begin;
    const int64_t width = block.range.end - block.range.begin;
    if (block.ranks * width > kMostListed) {
      padding.blocks.push_back(flat.as_strided({block.ranks, width}, {layout.shard_numel, 1},
                                               flat.storage_offset() + begin));
      continue;
    }
    for (int64_t i = 0; i < block.ranks * width; ++i) {
      elements.push_back(begin + i / width * layout.shard_numel + i % width);
    }
  }
  padding.elements = at::tensor(elements, at::kLong).to(flat.device());
  return padding;
}

}  // namespace fsdp
