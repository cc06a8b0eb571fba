#pragma once

#include <fsdp/shard.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/dim_chunks.h"

namespace fsdp::plan {

/// What the layout needs to know about one parameter. A row is the sub-tensor at one index of
/// dimension 0.
struct ParamShape {
  std::string fqn;
  std::vector<int64_t> shape;
};

/// A parameter's range in the unsharded parameters of its group, in elements.
struct ParamPlacement {
  int64_t offset = 0;
  int64_t numel = 0;
  bool operator==(const ParamPlacement&) const = default;
};

/// The range of a parameter that one rank holds. Empty if flat_begin == flat_end. Of a parameter
/// that is divided along an inner dimension, a rank holds no range: from 0 to how many elements.
struct ParamSlice {
  int64_t flat_begin = 0;    // first element, in the parameter
  int64_t flat_end = 0;      // one past the last element, in the parameter
  int64_t shard_offset = 0;  // of flat_begin, in the rank's shard
  int64_t numel() const { return flat_end - flat_begin; }
  bool operator==(const ParamSlice&) const = default;
};

/// How a group of parameters is divided into `ranks` equal shards, which an all-gather lays one
/// behind the other, and a reduce-scatter of gradients in the same layout sums.
///
/// Flat: the parameters are one range, which is cut. The output of the all-gather *is* the
/// parameters.
///
/// In chunks: each parameter is divided along a dimension (DTensor's Shard(dim)), and a shard has
/// this rank's chunk of each. The parameters are copied out of the output of the all-gather, unless
/// they happen to lie there in one piece, such as the only one of a group along its first
/// dimension.
struct GroupLayout {
  int64_t ranks = 1;
  int64_t shard_numel = 0;
  bool is_paged = false;  // the shard size is a multiple of the pages asked for
  std::vector<ParamPlacement> params;
  std::vector<DimChunks> chunks;  // by parameter; none if flat
  int64_t copied_numel = 0;       // of the range that is copied out to; 0: nothing is

  /// Of the output of the all-gather.
  int64_t numel() const { return ranks * shard_numel; }
  /// Whether the output is not the parameters.
  bool copies_out() const { return copied_numel > 0; }
  /// Of the range in which the unsharded parameters lie. A multiple of `ranks`.
  int64_t whole_numel() const { return copies_out() ? copied_numel : numel(); }
  bool operator==(const GroupLayout&) const = default;
};

/// Elements to which parameters and flat shards are aligned: 256 bytes of float32, 128 bytes of
/// bfloat16.
inline constexpr int64_t kAlignment = 64;

/// A layout whose shards end between rows may be larger than the plain one by 1 /
/// kRowPaddingDivisor.
inline constexpr int64_t kRowPaddingDivisor = 64;
/// The same of a layout whose shards are whole pages; small groups are not worth it.
inline constexpr int64_t kPagePaddingDivisor = 16;

/// Lays out `params` in order for `ranks` ranks.
///
/// Rule: every parameter starts at a multiple of kAlignment and the shard size is one too. If it
/// costs no more than 1 / kRowPaddingDivisor of the group, the shard size is also a multiple of the
/// row sizes of the matrices (parameters of two or more dimensions), and a matrix starts at a
/// multiple of its row size, so that shards end between rows. If that costs too much, the
/// constraint is dropped for the largest row size, and so on. Padding lies between parameters and
/// at the end, never inside a parameter. `page_numel` > 0: the shard size is a multiple of that
/// before all, if it costs no more than 1 / kPagePaddingDivisor of the group. Errors:
/// std::invalid_argument on ranks < 1, page_numel < 0 or a negative dimension.
GroupLayout make_group_layout(const std::vector<ParamShape>& params, int64_t ranks,
                              int64_t page_numel = 0);

/// Chunks begin at multiples of it, unless that is a copy more: 32 bytes of bfloat16, so that whole
/// rows can be given to a matrix product.
inline constexpr int64_t kChunkAlignment = 16;

/// Lays out `params` in order for `ranks` ranks, each divided along its dimension of `dims`.
///
/// Rule: chunks begin at multiples of kChunkAlignment, the shard size is one of kAlignment, or of
/// `page_numel` under the condition of make_group_layout(); without any padding behind the chunk if
/// then the only parameter is the output of the all-gather. Errors: std::invalid_argument as there,
/// and on a dimension that a parameter does not have.
GroupLayout make_chunked_layout(const std::vector<ParamShape>& params,
                                const std::vector<int64_t>& dims, int64_t ranks,
                                int64_t page_numel = 0);

/// The shape of what `rank` holds of parameter `index`, whose shape is `shape`; the layout is in
/// chunks.
std::vector<int64_t> local_shape(const GroupLayout& layout, size_t index,
                                 const std::vector<int64_t>& shape, int64_t rank);

/// The slice of each parameter that `rank` holds, in the layout's order.
std::vector<ParamSlice> slices_of_rank(const GroupLayout& layout, int64_t rank);

/// What `rank` holds of each of `params`, for which the layout was made, in the layout's order; the
/// group is divided along `mesh_axes`. Errors: as for slices_of_rank.
std::vector<Shard> shards_of_rank(const GroupLayout& layout, const std::vector<ParamShape>& params,
                                  int64_t rank, const std::vector<std::string>& mesh_axes);

/// The ranges of the output of the all-gather that belong to no parameter, in ascending order.
std::vector<Range> padding_of(const GroupLayout& layout);
/// Those in the shard of `rank`, counted from where it begins.
std::vector<Range> padding_of_rank(const GroupLayout& layout, int64_t rank);

/// The same padding in the shards of several ranks, counted from where each begins.
struct PaddingBlock {
  int64_t first_rank = 0;
  int64_t ranks = 0;
  Range range;
  bool operator==(const PaddingBlock&) const = default;
};

/// The padding of a layout in chunks: at most three blocks for each parameter, and one at the end.
std::vector<PaddingBlock> padding_blocks(const GroupLayout& layout);

/// `runs` runs of `run_numel` elements, which lie one behind the other in a shard, from
/// `shard_begin` on, and every `param_stride` elements in the parameter, from `param_begin` on.
struct RunBlock {
  int64_t shard_begin = 0;
  int64_t param_begin = 0;
  int64_t runs = 0;
  int64_t run_numel = 0;
  int64_t param_stride = 0;
  int64_t numel() const { return runs * run_numel; }
  bool operator==(const RunBlock&) const = default;
};

/// What the elements `in_shard` of the shard of `rank` have of parameter `index`, in the shard's
/// order.
std::vector<RunBlock> runs_in_shard(const GroupLayout& layout, size_t index, int64_t rank,
                                    Range in_shard);

}  // namespace fsdp::plan
