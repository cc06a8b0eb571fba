#pragma once

#include <vector>

namespace fsdprun::worker {

/// The losses and gradient norms that a spike is measured by: of the last good steps, the oldest
/// first, as many of each.
struct JudgedSteps {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  bool operator==(const JudgedSteps&) const = default;
};

}  // namespace fsdprun::worker
