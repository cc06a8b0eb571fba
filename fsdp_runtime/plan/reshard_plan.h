#pragma once

#include <cstdint>
#include <vector>

#include "fsdp_runtime/plan/group_layout.h"

namespace fsdp::plan {

/// Elements that change place when a group is laid out anew. Offsets are in the ranks' shards.
struct Move {
  int64_t from_rank = 0;
  int64_t from_offset = 0;
  int64_t to_rank = 0;
  int64_t to_offset = 0;
  int64_t numel = 0;
  bool operator==(const Move&) const = default;
};

/// What goes where when a group moves from `from` to `to`: two layouts of the same parameters,
/// usually for different numbers of ranks. Every parameter element is in exactly one move; padding
/// is in none. Ascending by place in `to`.
/// Errors: std::invalid_argument if the layouts are not of the same parameters.
std::vector<Move> plan_reshard(const GroupLayout& from, const GroupLayout& to);

}  // namespace fsdp::plan
