#include "fsdp_runtime/plan/box.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fsdp::plan {
namespace {

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) {
    result *= size;
  }
  return result;
}

// `count` rows of dimension prefix.size(), starting at `index`: leading dimensions fixed to
// `prefix`, trailing ones whole.
Box rows(const std::vector<int64_t>& shape, const std::vector<int64_t>& prefix, int64_t index,
         int64_t count) {
  const size_t dim = prefix.size();
  Box box{prefix, std::vector<int64_t>(dim, 1)};
  box.offsets.push_back(index);
  box.sizes.push_back(count);
  for (size_t d = dim + 1; d < shape.size(); ++d) {
    box.offsets.push_back(0);
    box.sizes.push_back(shape[d]);
  }
  return box;
}

// Appends the boxes of [begin, end) within the sub-tensor at `prefix`. Depth: shape.size(). A range
// within one row recurses once; the first range that spans rows is split into a head and a tail,
// each of which touches one end of its row and is not split again.
void append_boxes(const std::vector<int64_t>& shape, std::vector<int64_t>& prefix, int64_t begin,
                  int64_t end, std::vector<Box>& out) {
  if (begin >= end) {
    return;
  }
  int64_t stride = 1;
  for (size_t d = prefix.size() + 1; d < shape.size(); ++d) {
    stride *= shape[d];
  }
  const auto within_row = [&](int64_t row, int64_t from, int64_t to) {
    prefix.push_back(row);
    append_boxes(shape, prefix, from - row * stride, to - row * stride, out);
    prefix.pop_back();
  };
  const int64_t first_whole = (begin + stride - 1) / stride;
  const int64_t last_whole = end / stride;
  if (first_whole > last_whole) {
    within_row(last_whole, begin, end);
    return;
  }
  if (begin < first_whole * stride) {
    within_row(first_whole - 1, begin, first_whole * stride);
  }
  if (first_whole < last_whole) {
    out.push_back(rows(shape, prefix, first_whole, last_whole - first_whole));
  }
  if (last_whole * stride < end) {
    within_row(last_whole, last_whole * stride, end);
  }
}

/// The first dimension from which on one index of the dimensions before it has all its elements of
/// `part` in one run, in both boxes.
size_t run_dimension(const Box& part, const Box& source, const Box& target) {
  size_t dim = part.sizes.size();
  while (dim > 0 && part.sizes[dim - 1] == source.sizes[dim - 1] &&
         part.sizes[dim - 1] == target.sizes[dim - 1]) {
    --dim;
  }
  // One dimension more: a part of it is still one run if all inner dimensions are whole.
  return dim > 0 ? dim - 1 : 0;
}

}  // namespace

int64_t numel_of(const std::vector<int64_t>& shape) { return product(shape); }
int64_t numel_of(const Box& box) { return product(box.sizes); }

int64_t total_numel(const std::vector<Box>& boxes) {
  int64_t numel = 0;
  for (const Box& box : boxes) {
    numel += numel_of(box);
  }
  return numel;
}

Box whole_box(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

std::vector<Box> flat_range_to_boxes(const std::vector<int64_t>& shape, int64_t flat_begin,
                                     int64_t flat_end) {
  const int64_t numel = product(shape);
  if (flat_begin < 0 || flat_begin > flat_end || flat_end > numel) {
    throw std::invalid_argument("flat_range_to_boxes: range [" + std::to_string(flat_begin) + ", " +
                                std::to_string(flat_end) + ") does not lie within " +
                                std::to_string(numel) + " elements");
  }
  std::vector<Box> boxes;
  if (shape.empty()) {
    if (flat_begin < flat_end) {
      boxes.emplace_back();
    }
    return boxes;
  }
  std::vector<int64_t> prefix;
  append_boxes(shape, prefix, flat_begin, flat_end, boxes);
  return boxes;
}

int64_t flat_begin_of(const std::vector<int64_t>& shape, const Box& box) {
  int64_t index = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    index = index * shape[d] + box.offsets[d];
  }
  return index;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  if (a.offsets.size() != b.offsets.size()) {
    throw std::invalid_argument("intersect: boxes of " + std::to_string(a.offsets.size()) +
                                " and " + std::to_string(b.offsets.size()) + " dimensions");
  }
  Box common;
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    if (begin >= end) {
      return std::nullopt;
    }
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

Box relative_to(const Box& inner, const Box& outer) {
  Box result = inner;
  for (size_t d = 0; d < inner.offsets.size(); ++d) {
    result.offsets[d] -= outer.offsets[d];
  }
  return result;
}

void for_each_run(const Box& part, const Box& source, const Box& target,
                  const std::function<void(int64_t, int64_t, int64_t)>& use) {
  if (numel_of(part) == 0) {
    return;
  }
  const size_t run_dim = run_dimension(part, source, target);
  Box run = part;
  for (size_t d = 0; d < run_dim; ++d) {
    run.sizes[d] = 1;
  }
  const int64_t numel = numel_of(run);
  while (true) {
    use(flat_begin_of(source.sizes, relative_to(run, source)),
        flat_begin_of(target.sizes, relative_to(run, target)), numel);
    size_t d = run_dim;
    while (d > 0 && ++run.offsets[d - 1] == part.offsets[d - 1] + part.sizes[d - 1]) {
      run.offsets[d - 1] = part.offsets[d - 1];
      --d;
    }
    if (d == 0) {
      return;
    }
  }
}

}  // namespace fsdp::plan
