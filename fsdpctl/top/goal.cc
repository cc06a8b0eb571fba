#include "fsdpctl/top/goal.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace fsdprun::top {

std::optional<int> RowOfGoal(const std::string& goal, int count,
                             const std::function<RowName(int row)>& name_of) {
  int rank = -1;
  const bool is_rank = absl::SimpleAtoi(goal, &rank);
  std::optional<int> exact;
  std::optional<int> part;
  for (int row = 0; row < count; ++row) {
    const RowName name = name_of(row);
    if (is_rank && name.first_rank >= 0 && rank >= name.first_rank &&
        rank - name.first_rank < name.ranks) {
      return row;
    }
    exact = !exact.has_value() && name.node == goal ? row : exact;
    part = !part.has_value() && absl::StrContains(name.node, goal) ? row : part;
  }
  return exact.has_value() ? exact : part;
}

}  // namespace fsdprun::top
