#pragma once

#include <fsdp/shard.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::plan {

/// What the layout needs to know about one parameter. A row is the sub-tensor at one index of
/// dimension 0.
struct ParamShape {
  std::string fqn;
  std::vector<int64_t> shape;
};

/// A parameter's range in its group, in elements.
struct ParamPlacement {
  int64_t offset = 0;
  int64_t numel = 0;
  bool operator==(const ParamPlacement&) const = default;
};

/// The range of a parameter that one rank holds. Empty if flat_begin == flat_end.
struct ParamSlice {
  int64_t flat_begin = 0;    // first element, in the parameter
  int64_t flat_end = 0;      // one past the last element, in the parameter
  int64_t shard_offset = 0;  // of flat_begin, in the rank's shard
  int64_t numel() const { return flat_end - flat_begin; }
  bool operator==(const ParamSlice&) const = default;
};

/// A group of parameters as one flat range that is cut into `ranks` equal shards: the output of an
/// all-gather of the shards *is* the parameters, and a reduce-scatter of gradients in the same
/// layout gives each rank the gradient of its shard.
struct GroupLayout {
  int64_t ranks = 1;
  int64_t shard_numel = 0;
  bool is_paged = false;  // the shard size is a multiple of the pages asked for
  std::vector<ParamPlacement> params;

  int64_t numel() const { return ranks * shard_numel; }
  bool operator==(const GroupLayout&) const = default;
};

/// Elements to which parameters and shards are aligned: 256 bytes of float32, 128 bytes of
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

/// The slice of each parameter that `rank` holds, in the layout's order.
std::vector<ParamSlice> slices_of_rank(const GroupLayout& layout, int64_t rank);

/// What `rank` holds of each of `params`, for which the layout was made, in the layout's order; the
/// group is divided along `mesh_axes`. Errors: as for slices_of_rank.
std::vector<Shard> shards_of_rank(const GroupLayout& layout, const std::vector<ParamShape>& params,
                                  int64_t rank, const std::vector<std::string>& mesh_axes);

/// A half-open element range.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Range&) const = default;
};

/// The ranges of the group that belong to no parameter, in ascending order.
std::vector<Range> padding_of(const GroupLayout& layout);
/// Those in the shard of `rank`, counted from where it begins.
std::vector<Range> padding_of_rank(const GroupLayout& layout, int64_t rank);

}  // namespace fsdp::plan
