#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/coordinator/node_table.h"

namespace fsdprun {

/// "node-a (10.0.0.1, @0)", or "..., waits)" for one without a part in the world.
std::string DescribeNode(const job::Node& node);

/// The node that `text` means: by name, by address, or as `@N` by its group rank in the present
/// world. Pure. O(nodes). Errors: NOT_FOUND, or FAILED_PRECONDITION if it means several; both list
/// the nodes that it may be.
absl::StatusOr<const job::Node*> ChooseNode(const NodeTable& nodes, const std::string& text);

/// The nodes with a part in the world that are meant by any of `names` (none: all), and have one of
/// the workers with these ranks (none: all). Pure. O(nodes). Errors: NOT_FOUND for a node or a rank
/// that there is not.
absl::StatusOr<std::vector<const job::Node*>> ChooseMembers(const JobMachine& machine,
                                                            const std::vector<std::string>& names,
                                                            const std::vector<int>& ranks);

}  // namespace fsdprun
