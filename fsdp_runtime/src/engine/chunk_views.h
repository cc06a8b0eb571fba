#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fsdp_runtime/plan/group_layout.h"

namespace fsdp {

/// A parameter that is divided in chunks, and memory in which the shards of all ranks lie one
/// behind the other, have the same elements in another order. Seen in pieces they have equal
/// shapes, so that one is copied, added or cast to the other: [..., ranks, rows, ...], one piece
/// for the ranks with a full chunk, and one for the rank with fewer. Views; on any device; local.

/// Of `whole`, which has the parameter's shape, any strides and any dtype.
std::vector<at::Tensor> pieces_of(const at::Tensor& whole, const plan::DimChunks& chunks);

/// Of parameter `index`, of shape `shape`, in `flat`, [layout.numel()].
std::vector<at::Tensor> pieces_in(const at::Tensor& flat, const plan::GroupLayout& layout,
                                  size_t index, at::IntArrayRef shape);

/// Copies `from` to `to`, piece by piece.
void copy_pieces(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

/// Of memory in which the shards of all ranks lie one behind the other, in chunks or not, [numel()]
/// of the layout: parameter `index`, of shape `shape`, in memory of its own.
at::Tensor copy_of_whole(const at::Tensor& flat, const plan::GroupLayout& layout, size_t index,
                         at::IntArrayRef shape);
/// The other way: copies `whole`, of the parameter's shape and any strides, to where it lies there.
void copy_whole_to(const at::Tensor& flat, const plan::GroupLayout& layout, size_t index,
                   const at::Tensor& whole);

/// The padding of a layout in chunks: most of it is a few elements behind a chunk.
struct ChunkPadding {
  at::Tensor elements;             // int64, [n]: where in [layout.numel()]; of that which is little
  std::vector<at::Tensor> blocks;  // [ranks, elements] each: views of the rest
};

/// That in `flat`, [layout.numel()], on whose device `elements` is.
ChunkPadding padding_in(const at::Tensor& flat, const plan::GroupLayout& layout);

}  // namespace fsdp
