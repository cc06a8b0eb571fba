#pragma once

#include <fsdp/shard.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace fsdp::plan {

using fsdp::Box;

/// Elements of a tensor of this shape; 1 for a 0-dim tensor.
int64_t numel_of(const std::vector<int64_t>& shape);
int64_t numel_of(const Box& box);
/// Of all boxes together.
int64_t total_numel(const std::vector<Box>& boxes);
/// The box of a whole tensor.
Box whole_box(const std::vector<int64_t>& shape);

/// Cuts the element range [flat_begin, flat_end) of a row-major tensor into boxes, in flat order.
/// Each box is itself a contiguous element range, so the concatenated data of the boxes is
/// the data of the range. An empty range has no boxes; a range of a 1-dim tensor has one, of a
/// 2-dim tensor at most three (part of a row, whole rows, part of a row), of a d-dim tensor at most
/// 2d - 1. Errors: std::invalid_argument if the range does not lie within the tensor.
std::vector<Box> flat_range_to_boxes(const std::vector<int64_t>& shape, int64_t flat_begin,
                                     int64_t flat_end);

/// Flat element index of the first element of `box` in a row-major tensor of `shape`.
int64_t flat_begin_of(const std::vector<int64_t>& shape, const Box& box);

/// The intersection; nullopt when it is empty. Both boxes have the same number of dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);

/// `inner`, which lies within `outer`, in coordinates relative to `outer`.
Box relative_to(const Box& inner, const Box& outer);

/// Calls `use(from, to, numel)` for every run of elements of `part`, in flat order, that lie one
/// behind the other in the row-major data of both boxes around it: the run begins with element
/// `from` of `source` and with element `to` of `target`. What is needed to copy `part`.
void for_each_run(const Box& part, const Box& source, const Box& target,
                  const std::function<void(int64_t from, int64_t to, int64_t numel)>& use);

}  // namespace fsdp::plan
