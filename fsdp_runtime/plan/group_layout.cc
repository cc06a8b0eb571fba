#include "fsdp_runtime/plan/group_layout.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "fsdp_runtime/plan/box.h"

namespace fsdp::plan {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Elements per index of dimension 0; 0 for parameters without rows (vectors, empty parameters).
int64_t row_numel(const ParamShape& param) {
  if (param.shape.size() < 2 || numel_of(param.shape) == 0) {
    return 0;
  }
  return numel_of(param.shape) / param.shape[0];
}

// Least common multiple, or 0 as soon as it exceeds `limit` (also the guard against overflow).
int64_t lcm_up_to(int64_t a, int64_t b, int64_t limit) {
  const int64_t factor = b / std::gcd(a, b);
  return factor > limit / a ? 0 : a * factor;
}

struct RowRule {
  std::set<int64_t> rows;  // row sizes at which matrices start and shards end
  int64_t shard_multiple = kAlignment;
};

GroupLayout lay_out(const std::vector<ParamShape>& params, int64_t ranks, const RowRule& rule) {
  GroupLayout layout;
  layout.ranks = ranks;
  int64_t next = 0;
  for (const ParamShape& param : params) {
    const int64_t row = row_numel(param);
    int64_t start = round_up(next, kAlignment);
    if (rule.rows.count(row) != 0) {
      start = round_up(start, std::lcm(row, kAlignment));
    }
    const int64_t numel = numel_of(param.shape);
    layout.params.push_back({start, numel});
    next = start + numel;
  }
  // Never empty, so that no collective is empty.
  layout.shard_numel =
      round_up(std::max<int64_t>((next + ranks - 1) / ranks, 1), rule.shard_multiple);
  return layout;
}

void check_arguments(const char* caller, const std::vector<ParamShape>& params, int64_t ranks,
                     int64_t page_numel) {
  if (ranks < 1 || page_numel < 0) {
    throw std::invalid_argument(std::string(caller) + ": " + std::to_string(ranks) +
                                " ranks, pages of " + std::to_string(page_numel) + " elements");
  }
  for (const ParamShape& param : params) {
    if (std::any_of(param.shape.begin(), param.shape.end(), [](int64_t d) { return d < 0; })) {
      throw std::invalid_argument(std::string(caller) + ": " + param.fqn +
                                  " has a negative dimension");
    }
  }
}

// Whether the parameter is in one piece where the shards lie one behind the other.
bool lies_in_output(const DimChunks& chunks, int64_t ranks, int64_t shard_numel) {
  const int64_t numel = chunks.outer * chunks.extent * chunks.inner;
  const bool has_one_holder = ranks == 1 || chunks.extent <= chunks.chunk;
  return numel == 0 || has_one_holder ||
         (chunks.outer == 1 && chunks.padded_numel() == shard_numel);
}

bool lie_in_output(const GroupLayout& layout, int64_t shard_numel) {
  return std::all_of(layout.chunks.begin(), layout.chunks.end(), [&](const DimChunks& chunks) {
    return lies_in_output(chunks, layout.ranks, shard_numel);
  });
}

// Of a shard with `numel` elements of chunks.
int64_t padded_shard_numel(int64_t numel, int64_t page_numel) {
  const int64_t plain = round_up(numel, kAlignment);
  if (page_numel == 0) {
    return plain;
  }
  const int64_t paged = round_up(numel, std::lcm(page_numel, kAlignment));
  return paged - plain <= plain / kPagePaddingDivisor ? paged : plain;
}

// Where the parameters are when they are whole.
void place_params(const std::vector<ParamShape>& params, GroupLayout& layout) {
  const bool copies = !lie_in_output(layout, layout.shard_numel);
  int64_t next = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const int64_t numel = numel_of(params[i].shape);
    const int64_t offset = copies ? round_up(next, kAlignment) : layout.chunks[i].shard_offset;
    layout.params.push_back({offset, numel});
    next = offset + numel;
  }
  layout.copied_numel = copies ? round_up(next, layout.ranks * kChunkAlignment) : 0;
}

// kAlignment, or what is a multiple of the pages, too, if that is not too much.
int64_t shard_multiple_of(const std::vector<ParamShape>& params, int64_t ranks,
                          int64_t page_numel) {
  if (page_numel == 0) {
    return kAlignment;
  }
  const int64_t plain = lay_out(params, ranks, RowRule{}).numel();
  const int64_t pages = std::lcm(page_numel, kAlignment);
  const int64_t paged = lay_out(params, ranks, {{}, pages}).numel();
  return paged - plain <= plain / kPagePaddingDivisor ? pages : kAlignment;
}

}  // namespace

GroupLayout make_group_layout(const std::vector<ParamShape>& params, int64_t ranks,
                              int64_t page_numel) {
  check_arguments("make_group_layout", params, ranks, page_numel);
  std::set<int64_t> rows;
  for (const ParamShape& param : params) {
    if (row_numel(param) > 0) {
      rows.insert(row_numel(param));
    }
  }
  const int64_t multiple = shard_multiple_of(params, ranks, page_numel);
  GroupLayout plain = lay_out(params, ranks, {{}, multiple});
  plain.is_paged = page_numel > 0 && multiple % page_numel == 0;
  const int64_t limit = plain.numel() + plain.numel() / kRowPaddingDivisor;
  while (!rows.empty()) {
    RowRule rule{rows, multiple};
    for (int64_t row : rows) {
      rule.shard_multiple =
          rule.shard_multiple == 0 ? 0 : lcm_up_to(rule.shard_multiple, row, limit);
    }
    if (rule.shard_multiple != 0) {
      GroupLayout by_rows = lay_out(params, ranks, rule);
      if (by_rows.numel() <= limit) {
        by_rows.is_paged = plain.is_paged;
        return by_rows;
      }
    }
    rows.erase(std::prev(rows.end()));
  }
  return plain;
}

GroupLayout make_chunked_layout(const std::vector<ParamShape>& params,
                                const std::vector<int64_t>& dims, int64_t ranks,
                                int64_t page_numel) {
  check_arguments("make_chunked_layout", params, ranks, page_numel);
  if (dims.size() != params.size()) {
    throw std::invalid_argument("make_chunked_layout: " + std::to_string(dims.size()) +
                                " dimensions for " + std::to_string(params.size()) + " parameters");
  }
  GroupLayout layout;
  layout.ranks = ranks;
  int64_t next = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    DimChunks chunks = divide_along(params[i].shape, dims[i], ranks);
    const bool is_empty = chunks.padded_numel() == 0;
    chunks.shard_offset = is_empty ? next : round_up(next, kChunkAlignment);
    next = chunks.shard_offset + chunks.padded_numel();
    layout.chunks.push_back(chunks);
  }
  next = std::max<int64_t>(next, 1);  // so that no collective is empty
  const int64_t padded = padded_shard_numel(next, page_numel);
  layout.shard_numel =
      lie_in_output(layout, next) && !lie_in_output(layout, padded) ? next : padded;
  layout.is_paged = page_numel > 0 && layout.shard_numel % page_numel == 0;
  place_params(params, layout);
  return layout;
}

std::vector<int64_t> local_shape(const GroupLayout& layout, size_t index,
                                 const std::vector<int64_t>& shape, int64_t rank) {
  const DimChunks& chunks = layout.chunks.at(index);
  const Range held = indices_of_rank(chunks, rank);
  std::vector<int64_t> local = shape;
  local.at(static_cast<size_t>(chunks.dim)) = held.end - held.begin;
  return local;
}

namespace {

ParamSlice slice_of_chunks(const DimChunks& chunks, int64_t rank) {
  const int64_t begin = chunks.outer == 1 ? indices_of_rank(chunks, rank).begin * chunks.inner : 0;
  return {begin, begin + numel_of_rank(chunks, rank), chunks.shard_offset};
}

ParamSlice slice_of_rank(const GroupLayout& layout, size_t index, int64_t rank) {
  if (!layout.chunks.empty()) {
    return slice_of_chunks(layout.chunks[index], rank);
  }
  const ParamPlacement& param = layout.params[index];
  const int64_t shard_begin = rank * layout.shard_numel;
  const int64_t shard_end = shard_begin + layout.shard_numel;
  const int64_t begin = std::clamp(shard_begin, param.offset, param.offset + param.numel);
  const int64_t end = std::clamp(shard_end, begin, param.offset + param.numel);
  const int64_t in_shard = std::clamp(begin - shard_begin, int64_t{0}, layout.shard_numel);
  return {begin - param.offset, end - param.offset, in_shard};
}

}  // namespace

std::vector<ParamSlice> slices_of_rank(const GroupLayout& layout, int64_t rank) {
  if (rank < 0 || rank >= layout.ranks) {
    throw std::invalid_argument("slices_of_rank: rank " + std::to_string(rank) + " of " +
                                std::to_string(layout.ranks));
  }
  std::vector<ParamSlice> slices;
  slices.reserve(layout.params.size());
  for (size_t i = 0; i < layout.params.size(); ++i) {
    slices.push_back(slice_of_rank(layout, i, rank));
  }
  return slices;
}

namespace {

std::vector<Box> held_boxes(const GroupLayout& layout, size_t index,
                            const std::vector<int64_t>& shape, int64_t rank,
                            const ParamSlice& slice) {
  if (layout.chunks.empty()) {
    return flat_range_to_boxes(shape, slice.flat_begin, slice.flat_end);
  }
  if (slice.numel() == 0) {
    return {};
  }
  Box box{std::vector<int64_t>(shape.size(), 0), local_shape(layout, index, shape, rank)};
  const DimChunks& chunks = layout.chunks[index];
  box.offsets[static_cast<size_t>(chunks.dim)] = indices_of_rank(chunks, rank).begin;
  return {box};
}

}  // namespace

std::vector<Shard> shards_of_rank(const GroupLayout& layout, const std::vector<ParamShape>& params,
                                  int64_t rank, const std::vector<std::string>& mesh_axes) {
  const std::vector<ParamSlice> slices = slices_of_rank(layout, rank);
  std::vector<Shard> shards;
  shards.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    shards.push_back({params[i].fqn, params[i].shape,
                      held_boxes(layout, i, params[i].shape, rank, slices[i]), mesh_axes});
  }
  return shards;
}

namespace {

/// Adds the range, if it is not empty, or extends the last one by it.
void add_range(std::vector<Range>& ranges, Range range) {
  if (range.begin >= range.end) {
    return;
  }
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

std::vector<Range> chunk_padding_of_rank(const GroupLayout& layout, int64_t rank) {
  std::vector<Range> gaps;
  int64_t next = 0;
  for (const ParamSlice& slice : slices_of_rank(layout, rank)) {
    add_range(gaps, {next, slice.shard_offset});
    next = slice.shard_offset + slice.numel();
  }
  add_range(gaps, {next, layout.shard_numel});
  return gaps;
}

}  // namespace

std::vector<Range> padding_of(const GroupLayout& layout) {
  std::vector<Range> gaps;
  if (!layout.chunks.empty()) {
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      const int64_t begin = rank * layout.shard_numel;
      for (const Range& gap : chunk_padding_of_rank(layout, rank)) {
        add_range(gaps, {begin + gap.begin, begin + gap.end});
      }
    }
    return gaps;
  }
  int64_t next = 0;
  for (const ParamPlacement& param : layout.params) {
    add_range(gaps, {next, param.offset});
    next = param.offset + param.numel;
  }
  add_range(gaps, {next, layout.numel()});
  return gaps;
}

std::vector<Range> padding_of_rank(const GroupLayout& layout, int64_t rank) {
  if (!layout.chunks.empty()) {
    return chunk_padding_of_rank(layout, rank);
  }
  const int64_t begin = rank * layout.shard_numel;
  std::vector<Range> gaps;
  for (const Range& gap : padding_of(layout)) {
    const Range own{std::max(gap.begin - begin, int64_t{0}),
                    std::min(gap.end - begin, layout.shard_numel)};
    if (own.begin < own.end) {
      gaps.push_back(own);
    }
  }
  return gaps;
}

std::vector<PaddingBlock> padding_blocks(const GroupLayout& layout) {
  std::vector<PaddingBlock> padding;
  const auto add = [&padding](int64_t first_rank, int64_t ranks, Range range) {
    if (ranks > 0 && range.begin < range.end) {
      padding.push_back({first_rank, ranks, range});
    }
  };
  for (size_t i = 0; i < layout.chunks.size(); ++i) {
    const DimChunks& chunks = layout.chunks[i];
    const bool is_last = i + 1 == layout.chunks.size();
    const int64_t end = is_last ? layout.shard_numel : layout.chunks[i + 1].shard_offset;
    int64_t next_rank = 0;
    for (const ChunkBlock& block : blocks_of(chunks)) {
      const int64_t held = chunks.outer * block.rows * chunks.inner;
      add(block.first_rank, block.ranks, {chunks.shard_offset + held, end});
      next_rank = block.first_rank + block.ranks;
    }
    add(next_rank, layout.ranks - next_rank, {chunks.shard_offset, end});
  }
  return padding;
}

std::vector<RunBlock> runs_in_shard(const GroupLayout& layout, size_t index, int64_t rank,
                                    Range in_shard) {
  const ParamSlice slice = slice_of_rank(layout, index, rank);
  const int64_t begin = std::max(in_shard.begin, slice.shard_offset);
  const int64_t end = std::min(in_shard.end, slice.shard_offset + slice.numel());
  if (begin >= end) {
    return {};
  }
  const bool is_range = layout.chunks.empty() || layout.chunks[index].outer == 1;
  if (is_range) {
    const int64_t from = slice.flat_begin + begin - slice.shard_offset;
    return {{begin, from, 1, end - begin, end - begin}};
  }
  const DimChunks& chunks = layout.chunks[index];
  const Range held = indices_of_rank(chunks, rank);
  const int64_t run = (held.end - held.begin) * chunks.inner;
  const int64_t stride = chunks.extent * chunks.inner;
  std::vector<RunBlock> blocks;
  int64_t next = begin - slice.shard_offset;
  const int64_t last = end - slice.shard_offset;
  while (next < last) {
    const int64_t in_run = next % run;
    const int64_t whole = in_run == 0 ? (last - next) / run : 0;
    const int64_t numel = whole > 0 ? run : std::min(run - in_run, last - next);
    const int64_t from = next / run * stride + held.begin * chunks.inner + in_run;
    blocks.push_back({slice.shard_offset + next, from, std::max<int64_t>(whole, 1), numel, stride});
    next += blocks.back().numel();
  }
  return blocks;
}

}  // namespace fsdp::plan
