#include "launcher/slurm/slurm_plan.h"

#include <algorithm>
#include <csignal>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

/// Below the ports that the kernel gives out by itself, and above those of services.
constexpr uint64_t kFirstPort = 20'000;
constexpr uint64_t kPorts = 9'000;
/// So that the next steps of a job come far from the next jobs.
constexpr uint64_t kPortsBetweenSteps = 997;

/// What the variables that are about one task, or about the step that has started it, begin with.
/// Libraries take a process that has them for such a task: Lightning looks at SLURM_NTASKS, timm at
/// SLURM_PROCID, Open MPI at SLURM_STEP*, mpi4py and accelerate at PMI*. An srun takes some of them
/// for options (SLURM_CPU_BIND). Those about the job, the node and what was granted are not here.
constexpr const char* kOfTaskOrStep[] = {"SLURM_PROCID",   "SLURM_LOCALID",  "SLURM_NODEID",
                                         "SLURM_GTIDS",    "SLURM_TASK",     "SLURM_NTASKS",
                                         "SLURM_NPROCS",   "SLURM_STEP",     "SLURM_SRUN_COMM_",
                                         "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_DISTRIBUTION",
                                         "SLURM_MPI_TYPE", "SLURM_PMI",      "SLURM_LAUNCH_",
                                         "SRUN_DEBUG",     "PMI_",           "PMI2_",
                                         "PMIX_"};

/// What workers read of the job's request, and srun would take for options of the agents' step: it
/// goes past srun under other names.
constexpr const char* kOfRequest[] = {"SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK"};
constexpr char kPastSrun[] = "FSDPRUN_";

/// Of the variables of Slurm, of what it brings, and of launchers in its jobs.
constexpr const char* kOfSlurm[] = {"SLURM_", "SLURMD_", "SBATCH_", "SALLOC_",       "SRUN_",
                                    "PMI_",   "PMI2_",   "PMIX_",   "FSDPRUN_SLURM_"};

Environment Without(std::span<const char* const> beginnings, Environment environment) {
  std::erase_if(environment, [beginnings](const auto& variable) {
    return std::any_of(beginnings.begin(), beginnings.end(), [&](const char* beginning) {
      return absl::StartsWith(variable.first, beginning);
    });
  });
  return environment;
}

uint16_t PortOfStep(uint64_t job_id, uint32_t step_id) {
  return static_cast<uint16_t>(kFirstPort + (job_id + kPortsBetweenSteps * step_id) % kPorts);
}

std::string Nodes(size_t count) { return absl::StrCat(count, count == 1 ? " node" : " nodes"); }

std::string ValueOf(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

void NameRun(const std::string& name, int restarts, LaunchPlan* plan) {
  if (plan->rdzv_id.empty() || plan->rdzv_id == "none") {
    plan->rdzv_id =
        absl::StrCat("slurm-", name, restarts > 0 ? absl::StrCat("-restart-", restarts) : "");
  }
  plan->rdzv_id_is_random = false;
}

// `variable` is the one that has said how many nodes there are.
absl::Status TakeNodes(size_t count, const std::string& variable, LaunchPlan* plan) {
  if (!plan->nnodes_is_given) {
    plan->min_nodes = plan->max_nodes = static_cast<int>(count);
  }
  if (static_cast<size_t>(plan->min_nodes) <= count) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      "--nnodes: ", Nodes(static_cast<size_t>(plan->min_nodes)), " are needed, but ", variable,
      " has ", Nodes(count), "; ask Slurm for more with --nodes, or leave --nnodes out"));
}

// Several launchers on a node have one worker each.
absl::Status ShareNode(const SlurmTask& task, LaunchPlan* plan) {
  const int here = task.tasks_per_node[static_cast<size_t>(task.node)];
  const auto wrong = std::find_if(
      task.tasks_per_node.begin(), task.tasks_per_node.end(),
      [plan](int tasks) { return plan->nproc_per_node != 1 && plan->nproc_per_node != tasks; });
  if (plan->nproc_is_given && wrong != task.tasks_per_node.end()) {
    return absl::OutOfRangeError(absl::StrCat(
        "SLURM_STEP_TASKS_PER_NODE: srun starts ", *wrong, *wrong == 1 ? " launcher" : " launchers",
        " on ", task.nodes[static_cast<size_t>(wrong - task.tasks_per_node.begin())],
        ", each with --nproc-per-node ", plan->nproc_per_node,
        "; give srun --ntasks-per-node=1, or leave --nproc-per-node out for one worker per task"));
  }
  const int nodes = static_cast<int>(task.nodes.size());
  const bool fits = plan->min_nodes == plan->max_nodes &&
                    (plan->min_nodes == nodes || plan->min_nodes == task.tasks);
  if (plan->nnodes_is_given && !fits) {
    return absl::OutOfRangeError(
        absl::StrCat("--nnodes: SLURM_STEP_TASKS_PER_NODE has several launchers on a node, of ",
                     Nodes(task.nodes.size()), " in all; give --nnodes=", nodes,
                     ", or srun --ntasks-per-node=1"));
  }
  plan->nproc_per_node = 1;
  plan->min_nodes = plan->max_nodes = task.tasks;
  plan->local_place = LaunchPlan::LocalPlace{task.local_rank, here};
  return absl::OkStatus();
}

absl::Status FitTask(const SlurmAllocation& allocation, const Environment& environment,
                     LaunchPlan* plan) {
  plan->backend = RendezvousBackend::kC10d;
  plan->has_place_of_slurm = true;
  const SlurmTask& task = *allocation.task;
  if (environment.contains(kEnvSlurmJoins) && !plan->coordinators.empty()) {
    plan->node_rank = -1;  // Who joins others has no rank among them, nor need it be as many.
    return absl::OkStatus();
  }
  if (static_cast<size_t>(task.tasks) > task.nodes.size()) {
    RETURN_IF_ERROR(ShareNode(task, plan));
  } else {
    RETURN_IF_ERROR(TakeNodes(task.nodes.size(), "the step (SLURM_STEP_NUM_NODES)", plan));
  }
  plan->node_rank = task.rank;
  plan->shares_console = true;
  if (plan->coordinators.empty()) {
    NameRun(absl::StrCat(allocation.JobName(), ".", task.step_id), allocation.restart_count, plan);
    plan->endpoint = {task.nodes.front(), plan->master_port_is_explicit
                                              ? plan->master_port
                                              : PortOfStep(allocation.job_id, task.step_id)};
    plan->is_host = task.node == 0 && task.local_rank == 0;
  }
  return absl::OkStatus();
}

absl::Status TakeCoordinators(const Environment& environment, LaunchPlan* plan) {
  const std::string texts = ValueOf(environment, kEnvSlurmCoordinators);
  for (const absl::string_view text : absl::StrSplit(texts, ',', absl::SkipEmpty())) {
    const absl::StatusOr<HostPort> endpoint = ParseHostPort(text, 0);
    if (!endpoint.ok() || endpoint->port == 0) {
      return absl::OutOfRangeError(
          absl::StrCat(kEnvSlurmCoordinators, ": '", text, "' is no address with a port"));
    }
    plan->coordinators.push_back(*endpoint);
  }
  if (plan->coordinators.empty()) {
    return absl::OkStatus();
  }
  plan->endpoint = plan->coordinators.front();
  plan->is_host = false;
  plan->rdzv_id = ValueOf(environment, kEnvSlurmRunId);
  return absl::OkStatus();
}

// One node, and this process is there: nobody else has to be started (unless others may join).
bool IsAlone(const SlurmAllocation& allocation) {
  const std::vector<std::string> nodes = allocation.Nodes();
  return nodes.size() == 1 && nodes.front() == allocation.node_name;
}

absl::StatusOr<SlurmRole> FitShell(const SlurmAllocation& allocation,
                                   const Environment& environment, LaunchPlan* plan) {
  RETURN_IF_ERROR(TakeNodes(allocation.Nodes().size(),
                            absl::StrCat("job ", allocation.JobName(), " (SLURM_JOB_NODELIST=",
                                         ValueOf(environment, "SLURM_JOB_NODELIST"), ")"),
                            plan));
  if (IsAlone(allocation) && plan->IsSingleNode()) {
    return SlurmRole::kNone;
  }
  plan->backend = RendezvousBackend::kC10d;
  NameRun(allocation.JobName(), allocation.restart_count, plan);
  return SlurmRole::kShell;
}

// For every launcher in Slurm, wherever it has the rendezvous from.
void NameHosts(const SlurmAllocation& allocation, LaunchPlan* plan) {
  plan->node_name = allocation.node_name;
  // An srun in a batch file runs on the job's first node. Where it does not, the run id is another.
  if (allocation.task.has_value() && !allocation.task->launch_address.empty()) {
    plan->known_hosts[allocation.task->nodes.front()] = allocation.task->launch_address;
  }
}

// What a scheduler sends before it ends a job ends that in order, unless the workers are to have
// it.
void JoinJob(const SlurmAllocation& allocation, LaunchPlan* plan) {
  plan->scheduler_job = {.name = allocation.JobName(),
                         .nodes = allocation.Nodes(),
                         .restarts = allocation.restart_count};
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const auto has = [signal](const std::vector<int>& signals) {
      return std::find(signals.begin(), signals.end(), signal) != signals.end();
    };
    if (!has(plan->signals) && !has(plan->forwarded_signals)) {
      plan->signals.push_back(signal);
    }
  }
}

// An address may look like this machine's (127.0.1.1); the name of another node is not this one's.
void LeaveHostingToItsNode(const SlurmAllocation& allocation, LaunchPlan* plan) {
  if (!allocation.task.has_value() || plan->backend != RendezvousBackend::kC10d) {
    return;
  }
  const std::vector<std::string>& nodes = allocation.task->nodes;
  const bool is_a_node = std::find(nodes.begin(), nodes.end(), plan->endpoint.host) != nodes.end();
  if (is_a_node && plan->endpoint.host != allocation.node_name && !plan->is_host.has_value()) {
    plan->is_host = false;
  }
}

}  // namespace

absl::StatusOr<SlurmPlace> FitToSlurm(const Environment& environment, LaunchPlan* plan) {
  const bool is_own_job = plan->is_agent || plan->rendezvous_is_given ||
                          (plan->nnodes_is_given && plan->max_nodes == 1);
  absl::StatusOr<std::optional<SlurmAllocation>> found = ReadAllocation(environment);
  if (!found.ok() && !is_own_job) {
    return absl::OutOfRangeError(found.status().message());
  }
  if (!found.ok() || !found->has_value()) {
    return SlurmPlace();
  }
  SlurmPlace place{.allocation = **std::move(found)};
  NameHosts(place.allocation, plan);
  JoinJob(place.allocation, plan);
  if (is_own_job) {
    LeaveHostingToItsNode(place.allocation, plan);
    return place;
  }
  if (!place.allocation.task.has_value()) {
    ASSIGN_OR_RETURN(place.role, FitShell(place.allocation, environment, plan));
    return place;
  }
  RETURN_IF_ERROR(TakeCoordinators(environment, plan));
  if (plan->coordinators.empty() && place.allocation.task->tasks == 1) {
    return place;  // A step of one task is a job of one node.
  }
  place.role = SlurmRole::kTask;
  RETURN_IF_ERROR(FitTask(place.allocation, environment, plan));
  return place;
}

bool IsToldByFirstTask(const Environment& environment) {
  const absl::StatusOr<std::optional<SlurmAllocation>> found = ReadAllocation(environment);
  return found.ok() && found->has_value() && (*found)->task.has_value() && (*found)->task->rank > 0;
}

std::vector<std::string> SrunCommand(const SlurmAllocation& allocation, const LaunchPlan& plan,
                                     const std::vector<std::string>& words) {
  std::vector<std::string> command{"srun"};
  const bool is_heterogeneous = allocation.groups.size() > 1;
  for (size_t index = 0; index < allocation.groups.size(); ++index) {
    const std::string nodes = absl::StrCat(allocation.groups[index].nodes.size());
    if (index > 0) {
      command.emplace_back(":");
    }
    if (is_heterogeneous) {
      command.push_back(absl::StrCat("--het-group=", index));
    }
    // A lost node or agent is the coordinator's business: the others go on.
    for (const std::string& word :
         {absl::StrCat("--nodes=", nodes), absl::StrCat("--ntasks=", nodes),
          std::string("--ntasks-per-node=1"), std::string("--no-kill"),
          std::string("--kill-on-bad-exit=0"), std::string("--wait=0"), std::string("--mpi=none"),
          std::string("--export=ALL"), std::string("--input=none")}) {
      command.push_back(word);
    }
    command.insert(command.end(), plan.srun_arguments.begin(), plan.srun_arguments.end());
    command.insert(command.end(), words.begin(), words.end());
  }
  return command;
}

Environment SrunEnvironment(Environment environment, const std::string& coordinators,
                            const std::string& run_id, const std::string& token) {
  // One agent has all that was granted on its node to all tasks; and each that ends is to be named.
  for (const char* name : kOfRequest) {
    if (auto given = environment.extract(name); !given.empty()) {
      environment[absl::StrCat(kPastSrun, name)] = given.mapped();
    }
  }
  for (const char* name :
       {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU",
        "SLURM_NTASKS_PER_TRES", "SLURM_TASKS_PER_NODE", "SRUN_CPUS_PER_TASK", "SLURM_DISTRIBUTION",
        "SLURM_EXPORT_ENV", "SLURM_SRUN_REDUCE_TASK_EXIT_MSG"}) {
    environment.erase(name);
  }
  environment[kEnvSlurmCoordinators] = coordinators;
  environment[kEnvSlurmRunId] = run_id;
  environment["FSDPRUN_TOKEN"] = token;
  return environment;
}

Environment WorkerEnvironment(Environment environment, const LaunchPlan& plan) {
  environment.erase(kEnvSlurmCoordinators);
  environment.erase(kEnvSlurmRunId);
  environment.erase(kEnvSlurmJoins);
  for (const char* name : kOfRequest) {
    if (auto given = environment.extract(absl::StrCat(kPastSrun, name)); !given.empty()) {
      environment.emplace(name, given.mapped());
    }
  }
  if (!plan.has_place_of_slurm || plan.keeps_slurm_variables) {
    return environment;
  }
  return Without(kOfTaskOrStep, std::move(environment));
}

Environment WithoutSlurm(Environment environment) {
  return Without(kOfSlurm, std::move(environment));
}

}  // namespace fsdprun
