#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/coordinator/job_machine.h"

namespace fsdprun {

/// The node that an operator means by its name, its address, or its group rank in the present world
/// as `@N`. A name that several have is all of them. Errors: NOT_FOUND, with the nodes that there
/// are. Pure.
absl::StatusOr<std::vector<const job::Node*>> FindNodes(const JobMachine& machine,
                                                        const std::string& name);

/// The nodes with a part in the world that are meant by any of `names` (none: all), and have one of
/// the workers with these ranks (none: all). Errors: NOT_FOUND for a node or rank that there is
/// not. Pure.
absl::StatusOr<std::vector<const job::Node*>> ChooseMembers(const JobMachine& machine,
                                                            const std::vector<std::string>& names,
                                                            const std::vector<int>& ranks);

}  // namespace fsdprun
