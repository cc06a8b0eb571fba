#include "fsdp_runtime/plan/reshard_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fsdp::plan {
namespace {

// Cuts the elements of one parameter wherever a shard ends in either layout.
void append_moves(const GroupLayout& from, const GroupLayout& to, size_t param,
                  std::vector<Move>& moves) {
  const int64_t numel = to.params[param].numel;
  int64_t flat = 0;
  while (flat < numel) {
    const int64_t from_place = from.params[param].offset + flat;
    const int64_t to_place = to.params[param].offset + flat;
    const int64_t from_offset = from_place % from.shard_numel;
    const int64_t to_offset = to_place % to.shard_numel;
    const int64_t count =
        std::min({numel - flat, from.shard_numel - from_offset, to.shard_numel - to_offset});
    moves.push_back(
        {from_place / from.shard_numel, from_offset, to_place / to.shard_numel, to_offset, count});
    flat += count;
  }
}

}  // namespace

std::vector<Move> plan_reshard(const GroupLayout& from, const GroupLayout& to) {
  if (from.params.size() != to.params.size()) {
    throw std::invalid_argument("plan_reshard: layouts of " + std::to_string(from.params.size()) +
                                " and " + std::to_string(to.params.size()) + " parameters");
  }
  std::vector<Move> moves;
  for (size_t i = 0; i < to.params.size(); ++i) {
    if (from.params[i].numel != to.params[i].numel) {
      throw std::invalid_argument("plan_reshard: parameter " + std::to_string(i) + " has " +
                                  std::to_string(from.params[i].numel) + " and " +
                                  std::to_string(to.params[i].numel) + " elements");
    }
    append_moves(from, to, i, moves);
  }
  return moves;
}

}  // namespace fsdp::plan
