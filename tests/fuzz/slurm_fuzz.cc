// Text -> the names of a list of nodes, the numbers of a list of counts, what scontrol and squeue
// say of jobs, and an allocation (lines NAME=value). Properties: no list is longer than is
// promised; names have no separators in them and are read as themselves; a task has a place in its
// step.

#include <algorithm>
#include <string>

#include "base/check.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/job_record.h"
#include "launcher/slurm/node_list.h"
#include "launcher/slurm/queue_listing.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun {
namespace {

void CheckNames(absl::string_view text) {
  const auto names = ExpandNodeList(text);
  FSDPRUN_CHECK(names.ok() || names.status().message().size() < 512, "a long error");
  if (!names.ok() || names->empty()) {
    return;
  }
  FSDPRUN_CHECK(names->size() <= kMaxSlurmNames, "too many names");
  const auto again = ExpandNodeList(names->back());
  FSDPRUN_CHECK(again.ok() && again->size() == 1 && again->front() == names->back(),
                "a name is not itself");
}

void CheckCounts(absl::string_view text) {
  const auto counts = ExpandCounts(text);
  FSDPRUN_CHECK(!counts.ok() || (!counts->empty() && counts->size() <= kMaxSlurmNames),
                "too many counts");
}

void CheckAllocation(std::string_view text) {
  Environment environment;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t end = line.find('=');
    if (end != std::string_view::npos) {
      environment[std::string(line.substr(0, end))] = std::string(line.substr(end + 1));
    }
  }
  const auto allocation = ReadAllocation(environment);
  if (!allocation.ok() || !allocation->has_value()) {
    return;
  }
  FSDPRUN_CHECK(!(*allocation)->Nodes().empty(), "an allocation without nodes");
  if (const auto& task = (*allocation)->task) {
    FSDPRUN_CHECK(task->nodes.size() == task->tasks_per_node.size(), "nodes without a count");
    FSDPRUN_CHECK(task->local_rank < task->tasks_per_node.at(static_cast<size_t>(task->node)) &&
                      task->rank < task->tasks,
                  "a task outside of its step");
  }
}

void CheckRecord(absl::string_view text) {
  const auto record = ReadJobRecord(text);
  FSDPRUN_CHECK(!record.ok() || !record->state.empty(), "a job without a state");
}

void CheckListing(absl::string_view text) {
  for (const ListedJob& listed : ReadListedJobs(text)) {
    for (const std::string* field : {&listed.job, &listed.state, &listed.nodes, &listed.shares,
                                     &listed.time_left, &listed.resources, &listed.features}) {
      FSDPRUN_CHECK(field->find_first_of("\t\n") == std::string::npos, "a field with an end in it");
    }
    FSDPRUN_CHECK(listed.job.find('+') == std::string::npos, "a component is no job");
  }
}

void Fuzz(std::string_view input) {
  const absl::string_view text(input.data(), input.size());
  CheckNames(text);
  CheckCounts(text);
  CheckRecord(text);
  CheckListing(text);
  CheckAllocation(input);
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
