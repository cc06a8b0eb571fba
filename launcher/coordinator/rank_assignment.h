#pragma once

// Rank assignment: a pure function of the member nodes.

#include <string>
#include <string_view>
#include <vector>

#include "proto/cluster/types.h"

namespace fsdprun {

/// A member of the world to be formed.
struct Candidate {
  NodeInfo node;
  /// Group rank in the previous world, or -1.
  int previous_group_rank = -1;
};

/// What all members of a world share.
struct WorldNumbers {
  Generation generation;
  int restart_count = 0;
  int max_restarts = 0;
  std::string launch_id;
  int world_of_attempt = 0;
  int earlier_restarts = 0;
};

/// Less-than with runs of digits compared as numbers: node-2 before node-10.
bool NaturalLess(std::string_view a, std::string_view b);

/// Assigns ranks to `candidates`; element i of the result belongs to element i of the argument.
/// Order of group ranks: a requested node rank is honoured as far as the world has no gaps (after a
/// loss the requests keep their relative order); the other places go to survivors in their old
/// order, then to newcomers in natural order of name, then incarnation. Ranks are contiguous per
/// node; role ranks count the workers of equal role in rank order.
std::vector<RankAssignment> AssignRanks(const std::vector<Candidate>& candidates,
                                        const WorldNumbers& numbers);

}  // namespace fsdprun
