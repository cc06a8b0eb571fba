#pragma once

#include <functional>
#include <optional>
#include <string>

namespace fsdprun::top {

/// What a row can be found by.
struct RowName {
  int first_rank = -1;
  int ranks = 0;
  std::string node;
};

/// The row that is meant, of `count`: that of the rank if `goal` is a number, else the first one of
/// the node, else of a node of which it is a part of the name. Absent: there is none. Pure.
std::optional<int> RowOfGoal(const std::string& goal, int count,
                             const std::function<RowName(int row)>& name_of);

}  // namespace fsdprun::top
