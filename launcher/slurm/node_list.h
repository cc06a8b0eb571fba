#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fsdprun {

/// More than Slurm itself would have in one range.
inline constexpr size_t kMaxSlurmNames = 65536;

/// The names in Slurm's form of a list, in its order: `a[01-03,7],b[1-2]c[3]` is a01, a02, a03, a7,
/// b1c3, b2c3. As `scontrol show hostnames`, but for what that leaves out or reads otherwise: names
/// may go on after their last bracket, and a bracket that is not closed is an error. Pure. Errors:
/// INVALID_ARGUMENT with the text and the position; more than kMaxSlurmNames names are one.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

/// The numbers in Slurm's form of a list of one number for each node: `2(x3),1` is 2, 2, 2, 1.
/// Pure. Errors: as above.
absl::StatusOr<std::vector<int>> ExpandCounts(absl::string_view list);

}  // namespace fsdprun
