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
  if (ranks < 1 || page_numel < 0) {
    throw std::invalid_argument("make_group_layout: " + std::to_string(ranks) +
                                " ranks, pages of " + std::to_string(page_numel) + " elements");
  }
  std::set<int64_t> rows;
  for (const ParamShape& param : params) {
    if (std::any_of(param.shape.begin(), param.shape.end(), [](int64_t d) { return d < 0; })) {
      throw std::invalid_argument("make_group_layout: " + param.fqn + " has a negative dimension");
    }
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

std::vector<ParamSlice> slices_of_rank(const GroupLayout& layout, int64_t rank) {
  if (rank < 0 || rank >= layout.ranks) {
    throw std::invalid_argument("slices_of_rank: rank " + std::to_string(rank) + " of " +
                                std::to_string(layout.ranks));
  }
  const int64_t shard_begin = rank * layout.shard_numel;
  const int64_t shard_end = shard_begin + layout.shard_numel;
  std::vector<ParamSlice> slices;
  slices.reserve(layout.params.size());
  for (const ParamPlacement& param : layout.params) {
    const int64_t begin = std::clamp(shard_begin, param.offset, param.offset + param.numel);
    const int64_t end = std::clamp(shard_end, begin, param.offset + param.numel);
    const int64_t in_shard = std::clamp(begin - shard_begin, int64_t{0}, layout.shard_numel);
    slices.push_back({begin - param.offset, end - param.offset, in_shard});
  }
  return slices;
}

std::vector<Shard> shards_of_rank(const GroupLayout& layout, const std::vector<ParamShape>& params,
                                  int64_t rank, const std::vector<std::string>& mesh_axes) {
  const std::vector<ParamSlice> slices = slices_of_rank(layout, rank);
  std::vector<Shard> shards;
  shards.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    shards.push_back(
        {params[i].fqn, params[i].shape,
         flat_range_to_boxes(params[i].shape, slices[i].flat_begin, slices[i].flat_end),
         mesh_axes});
  }
  return shards;
}

std::vector<Range> padding_of(const GroupLayout& layout) {
  std::vector<Range> gaps;
  int64_t next = 0;
  for (const ParamPlacement& param : layout.params) {
    if (param.offset > next) {
      gaps.push_back({next, param.offset});
    }
    next = param.offset + param.numel;
  }
  if (next < layout.numel()) {
    gaps.push_back({next, layout.numel()});
  }
  return gaps;
}

std::vector<Range> padding_of_rank(const GroupLayout& layout, int64_t rank) {
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

}  // namespace fsdp::plan
