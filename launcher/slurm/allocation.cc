#include "launcher/slurm/allocation.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "launcher/slurm/node_list.h"

namespace fsdprun {
namespace {

/// Slurm's numbers of steps that are shells: the interactive one of salloc, and the batch file's.
constexpr uint32_t kFirstReservedStep = 0xfffffff0;
/// A heterogeneous job has few components; each has a dozen variables.
constexpr int kMaxGroups = 1024;

// Variables as values.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  // Empty if the variable is empty or not set: Slurm never means anything by an empty one.
  std::string Text(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }

  template <typename Number>
  absl::StatusOr<std::optional<Number>> Optional(const std::string& name, Number minimum) const {
    const std::string text = Text(name);
    if (text.empty()) {
      return std::optional<Number>();
    }
    Number number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < minimum) {
      return Error(name, absl::StrCat("a number of at least ", minimum, " belongs there"));
    }
    return std::optional<Number>(number);
  }

  template <typename Number>
  absl::StatusOr<Number> Required(const std::string& name, Number minimum) const {
    ASSIGN_OR_RETURN(const std::optional<Number> number, Optional<Number>(name, minimum));
    if (!number.has_value()) {
      return Error(name, "Slurm sets it for this kind of process; keep it, or unset SLURM_JOB_ID");
    }
    return *number;
  }

  absl::StatusOr<std::vector<std::string>> Names(const std::string& name) const {
    absl::StatusOr<std::vector<std::string>> names = ExpandNodeList(Text(name));
    if (!names.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", names.status().message()));
    }
    if (names->empty()) {
      return Error(name, "a list of nodes belongs there");
    }
    return names;
  }

  absl::Status Error(const std::string& name, absl::string_view expected) const {
    return absl::InvalidArgumentError(absl::StrCat(name, "='", Text(name), "': ", expected));
  }

 private:
  const Environment& environment_;
};

// `suffix`: of the variables of a component, empty for the job.
absl::StatusOr<SlurmGroup> ReadGroup(const Variables& variables, const std::string& suffix) {
  SlurmGroup group;
  ASSIGN_OR_RETURN(group.job_id, variables.Required<uint64_t>("SLURM_JOB_ID" + suffix, 1));
  ASSIGN_OR_RETURN(group.nodes, variables.Names("SLURM_JOB_NODELIST" + suffix));
  const std::string count_name = "SLURM_JOB_NUM_NODES" + suffix;
  ASSIGN_OR_RETURN(const std::optional<int> count, variables.Optional<int>(count_name, 1));
  if (count.has_value() && static_cast<size_t>(*count) != group.nodes.size()) {
    return variables.Error(count_name, absl::StrCat("SLURM_JOB_NODELIST", suffix, " has ",
                                                    group.nodes.size(), " nodes"));
  }
  return group;
}

// The shell of a heterogeneous job sees the first component only in the variables without suffix.
absl::Status ReadGroups(const Variables& variables, SlurmAllocation* allocation) {
  ASSIGN_OR_RETURN(const std::optional<int> size, variables.Optional<int>("SLURM_HET_SIZE", 1));
  if (!size.has_value()) {
    ASSIGN_OR_RETURN(SlurmGroup group, ReadGroup(variables, ""));
    allocation->groups.push_back(std::move(group));
    return absl::OkStatus();
  }
  if (*size > kMaxGroups) {
    return variables.Error("SLURM_HET_SIZE", absl::StrCat("at most ", kMaxGroups, " components"));
  }
  for (int index = 0; index < *size; ++index) {
    ASSIGN_OR_RETURN(SlurmGroup group, ReadGroup(variables, absl::StrCat("_HET_GROUP_", index)));
    allocation->groups.push_back(std::move(group));
  }
  return absl::OkStatus();
}

absl::Status CheckPlace(const Variables& variables, const SlurmTask& task) {
  if (task.tasks_per_node.size() != task.nodes.size()) {
    return variables.Error("SLURM_STEP_TASKS_PER_NODE",
                           absl::StrCat("SLURM_STEP_NODELIST has ", task.nodes.size(), " nodes"));
  }
  if (static_cast<size_t>(task.node) >= task.nodes.size()) {
    return variables.Error("SLURM_NODEID",
                           absl::StrCat("SLURM_STEP_NODELIST has ", task.nodes.size(), " nodes"));
  }
  const int here = task.tasks_per_node[static_cast<size_t>(task.node)];
  if (task.local_rank >= here) {
    return variables.Error("SLURM_LOCALID",
                           absl::StrCat("SLURM_STEP_TASKS_PER_NODE has ", here, " tasks here"));
  }
  if (task.rank >= task.tasks) {
    return variables.Error("SLURM_PROCID", absl::StrCat("the step has ", task.tasks, " tasks"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SlurmTask> ReadTask(const Variables& variables, uint32_t step_id) {
  SlurmTask task{.step_id = step_id};
  ASSIGN_OR_RETURN(task.nodes, variables.Names("SLURM_STEP_NODELIST"));
  absl::StatusOr<std::vector<int>> counts =
      ExpandCounts(variables.Text("SLURM_STEP_TASKS_PER_NODE"));
  if (!counts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("SLURM_STEP_TASKS_PER_NODE: ", counts.status().message()));
  }
  task.tasks_per_node = *std::move(counts);
  ASSIGN_OR_RETURN(task.tasks, variables.Required<int>("SLURM_STEP_NUM_TASKS", 1));
  ASSIGN_OR_RETURN(task.rank, variables.Required<int>("SLURM_PROCID", 0));
  ASSIGN_OR_RETURN(task.node, variables.Required<int>("SLURM_NODEID", 0));
  ASSIGN_OR_RETURN(task.local_rank, variables.Required<int>("SLURM_LOCALID", 0));
  task.launch_address = variables.Text("SLURM_LAUNCH_NODE_IPADDR");
  RETURN_IF_ERROR(CheckPlace(variables, task));
  return task;
}

}  // namespace

std::vector<std::string> SlurmAllocation::Nodes() const {
  std::vector<std::string> nodes;
  for (const SlurmGroup& group : groups) {
    nodes.insert(nodes.end(), group.nodes.begin(), group.nodes.end());
  }
  return nodes;
}

std::string SlurmAllocation::JobName() const {
  return array_job_id.has_value() && array_task_id.has_value()
             ? absl::StrCat(*array_job_id, "_", *array_task_id)
             : absl::StrCat(job_id);
}

absl::StatusOr<std::optional<SlurmAllocation>> ReadAllocation(const Environment& environment) {
  const Variables variables(environment);
  if (variables.Text("SLURM_JOB_ID").empty()) {
    return std::optional<SlurmAllocation>();
  }
  SlurmAllocation allocation;
  ASSIGN_OR_RETURN(allocation.job_id, variables.Required<uint64_t>("SLURM_JOB_ID", 1));
  ASSIGN_OR_RETURN(allocation.array_job_id, variables.Optional<uint64_t>("SLURM_ARRAY_JOB_ID", 1));
  ASSIGN_OR_RETURN(allocation.array_task_id,
                   variables.Optional<uint64_t>("SLURM_ARRAY_TASK_ID", 0));
  allocation.cluster = variables.Text("SLURM_CLUSTER_NAME");
  allocation.node_name = variables.Text("SLURMD_NODENAME");
  ASSIGN_OR_RETURN(const std::optional<int> restarts,
                   variables.Optional<int>("SLURM_RESTART_COUNT", 0));
  allocation.restart_count = restarts.value_or(0);
  ASSIGN_OR_RETURN(allocation.cpus_per_task, variables.Optional<int>("SLURM_CPUS_PER_TASK", 1));
  ASSIGN_OR_RETURN(allocation.end_time, variables.Optional<int64_t>("SLURM_JOB_END_TIME", 1));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> step,
                   variables.Optional<uint32_t>("SLURM_STEP_ID", 0));
  if (step.has_value() && *step < kFirstReservedStep) {
    ASSIGN_OR_RETURN(allocation.task, ReadTask(variables, *step));
    allocation.groups.push_back({allocation.job_id, allocation.task->nodes});
  } else {
    RETURN_IF_ERROR(ReadGroups(variables, &allocation));
  }
  return std::optional<SlurmAllocation>(std::move(allocation));
}

}  // namespace fsdprun
