#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

constexpr uint64_t kLittleMemory = 2 * kGib;
/// Of what may be used, this part.
constexpr double kLittleLeft = 0.1;
/// Set for pods without requests, which are killed first.
constexpr int kKilledFirst = 900;
constexpr int kNoOvercommit = 2;
constexpr uint64_t kDefaultMapCount = 65530;

/// Whether `left` of `all` is little.
bool IsLittle(uint64_t left, uint64_t all) {
  return left < kLittleMemory && static_cast<double>(left) < kLittleLeft * static_cast<double>(all);
}

void CheckMachineMemory(const MemoryFacts& facts, Findings* findings) {
  const std::string found = absl::StrCat(BytesText(facts.available), " of ", BytesText(facts.total),
                                         " memory are available");
  if (IsLittle(facts.available, facts.total)) {
    findings->Warn("available", {found, "workers would be killed for lack of memory",
                                 "see what uses it: `ps aux --sort=-rss | head`"});
  } else {
    findings->Ok("available", found);
  }
}

void CheckMemoryCgroup(const MemoryFacts& facts, Findings* findings) {
  const char* name = "memory_cgroup";
  if (!facts.cgroup_limit.has_value() || *facts.cgroup_limit >= facts.total) {
    findings->Ok(name, "no limit by a cgroup below what the machine has");
    return;
  }
  const uint64_t limit = *facts.cgroup_limit;
  const uint64_t left = limit - std::min(limit, facts.cgroup_used);
  const Advice advice{
      absl::StrCat("the cgroup allows ", BytesText(limit), " of the machine's ",
                   BytesText(facts.total), ", ", BytesText(left), " are left"),
      "who needs more is killed (SIGKILL, the OOM killer); shared memory and /dev/shm count, too",
      "give the container or the step more: docker run --memory=, resources.limits.memory of the "
      "pod, srun --mem= (0: all of the node)"};
  findings->Add(
      limit < kLittleMemory || IsLittle(left, limit) ? Severity::kWarning : Severity::kNote, name,
      advice);
}

void CheckSwap(const MemoryFacts& facts, Findings* findings) {
  const uint64_t used = facts.swap_total - std::min(facts.swap_free, facts.swap_total);
  if (used >= kGib) {
    findings->Note("swap", {absl::StrCat(BytesText(used), " of memory are swapped out"),
                            "training waits for the disk whenever it needs them",
                            "end what uses the memory, then `swapoff -a && swapon -a`"});
  } else {
    findings->Ok("swap", absl::StrCat("swap in use: ", BytesText(used)));
  }
}

void CheckOom(const MemoryFacts& facts, Findings* findings) {
  const std::string found = absl::StrCat("oom_score_adj is ", facts.oom_score_adj);
  if (facts.oom_score_adj <= 0) {
    findings->Ok("oom_score", found);
    return;
  }
  findings->Add(
      facts.oom_score_adj >= kKilledFirst ? Severity::kWarning : Severity::kNote, "oom_score",
      {found, "when memory runs out, these processes are killed before others",
       "Kubernetes: give the container limits equal to its requests (Guaranteed); else `echo 0 > "
       "/proc/self/oom_score_adj` as root"});
}

void CheckOvercommit(const MemoryFacts& facts, Findings* findings) {
  if (facts.overcommit == kNoOvercommit) {
    findings->Warn("overcommit",
                   {"vm.overcommit_memory is 2: memory is refused that was only reserved",
                    "CUDA and data loaders that fork reserve far more than they use, and fail with "
                    "'Cannot allocate memory'",
                    "`sysctl vm.overcommit_memory=0`"});
  } else {
    findings->Ok("overcommit", absl::StrCat("vm.overcommit_memory is ", facts.overcommit));
  }
  if (facts.max_map_count != 0 && facts.max_map_count < kDefaultMapCount) {
    findings->Warn("max_map_count",
                   {absl::StrCat("vm.max_map_count is ", facts.max_map_count),
                    "checkpoints and datasets that are mapped may need more mappings",
                    absl::StrCat("`sysctl vm.max_map_count=", 4 * kDefaultMapCount, "`")});
  } else {
    findings->Ok("max_map_count", absl::StrCat("vm.max_map_count is ", facts.max_map_count));
  }
}

}  // namespace

std::vector<Finding> CheckMemory(const MemoryFacts& facts) {
  Findings findings(CheckGroup::kMemory);
  CheckMachineMemory(facts, &findings);
  CheckMemoryCgroup(facts, &findings);
  CheckSwap(facts, &findings);
  CheckOom(facts, &findings);
  CheckOvercommit(facts, &findings);
  return findings.Take();
}

std::vector<Finding> CheckCpus(const CpuFacts& facts) {
  Findings findings(CheckGroup::kCpus);
  const std::string found =
      absl::StrCat("this process may use ", facts.allowed, " of ", facts.online, " CPUs");
  if (facts.allowed == 1 && facts.online > 1) {
    findings.Warn("affinity", {found, "all workers and their data loaders share one core",
                               facts.is_in_slurm
                                   ? "srun --cpus-per-task=N (sbatch's is not taken over by every "
                                     "release), or srun --cpu-bind=none"
                                   : "start without taskset or numactl, or give them more CPUs"});
  } else if (facts.allowed < facts.online) {
    findings.Note("affinity", {found, "workers inherit it, and size their thread pools by it",
                               facts.is_in_slurm ? "for more: srun --cpus-per-task=N" : ""});
  } else {
    findings.Ok("affinity", found);
  }
  if (facts.quota.has_value() && *facts.quota < facts.allowed) {
    findings.Warn(
        "quota",
        {absl::StrFormat("the cgroup allows the time of %.1f CPUs, and %d are visible",
                         *facts.quota, facts.allowed),
         "threads are sized for all CPUs, and all of them stand still when the time is used up",
         "docker run --cpuset-cpus= instead of --cpus=; Kubernetes: static CPU manager policy and "
         "whole CPUs; or set OMP_NUM_THREADS"});
  } else {
    findings.Ok("quota", "no quota of CPU time below that");
  }
  int threads = 0;
  if (absl::SimpleAtoi(facts.omp_threads, &threads) && threads > facts.allowed) {
    findings.Warn("omp_threads",
                  {absl::StrCat("OMP_NUM_THREADS is ", threads, ", with ", facts.allowed, " CPUs"),
                   "threads of one worker wait for each other's CPU",
                   "unset OMP_NUM_THREADS: fsdprun sets it, as torchrun does"});
  }
  return findings.Take();
}

}  // namespace fsdprun::doctor
