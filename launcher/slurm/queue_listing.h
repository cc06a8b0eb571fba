#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// A job that is not over, or one component of a heterogeneous job, as squeue lists it. What is not
/// set is whatever squeue says in place of it.
struct ListedJob {
  /// As people name it (`12`, `12_3`); of all components alike.
  std::string job;
  std::string state;
  /// Those that it has now: the variables of a job still have the ones that were lost.
  std::string nodes;
  /// NO for a job that has its nodes to itself.
  std::string shares;
  std::string time_left;
  /// `gres:gpu:8`; since Slurm 23.11 `gres/gpu:8`.
  std::string resources;
  std::string features;
  std::string name;
  std::string comment;

  bool operator==(const ListedJob&) const = default;
};

/// The command that lists the jobs of this user, and the environment for it: without the variables
/// that would make squeue leave some out.
std::vector<std::string> ListJobsCommand();
Environment ListJobsEnvironment(Environment environment);

/// Of what that command prints. Pure.
std::vector<ListedJob> ReadListedJobs(absl::string_view text);

}  // namespace fsdprun
