#include <algorithm>

#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

/// What a launcher of a few workers needs, and what one of many nodes and data loaders does.
constexpr uint64_t kFewFiles = 256;
constexpr uint64_t kEnoughFiles = 4096;
/// Each worker of PyTorch has dozens of threads, and its data loaders are processes.
constexpr uint64_t kFewProcesses = 512;
constexpr uint64_t kEnoughProcesses = 4096;
constexpr uint64_t kFewPids = 256;
constexpr uint64_t kEnoughPids = 1024;
/// A card registers the buffers of each connection, NCCL's some MiB each.
constexpr uint64_t kLittleLocked = 64 * kMib;
constexpr uint64_t kSmallStack = kMib;

bool IsBelow(const std::optional<uint64_t>& limit, uint64_t bound) {
  return limit.has_value() && *limit < bound;
}

void CheckOpenFiles(const Limit& files, Findings* findings) {
  const char* name = "open_files";
  const std::string found =
      absl::StrCat("open files: ", CountText(files.soft), ", hard limit ", CountText(files.hard));
  const std::string todo =
      "`ulimit -n 65536` before the start; for good LimitNOFILE=65536 in a systemd unit, nofile in "
      "/etc/security/limits.conf, or docker run --ulimit nofile=65536:65536";
  if (IsBelow(files.hard, kFewFiles)) {
    findings->Problem(name, {found, "the launcher needs several for each worker and node", todo});
  } else if (IsBelow(files.hard, kEnoughFiles)) {
    findings->Warn(name, {found,
                          "the launcher raises its own limit to the hard one, which is little for "
                          "many workers or nodes",
                          todo});
  } else if (IsBelow(files.soft, kEnoughFiles)) {
    findings->Note(name, {found,
                          "workers get the soft limit: data loaders that share tensors by "
                          "descriptors may meet 'Too many open files'",
                          todo});
  } else {
    findings->Ok(name, found);
  }
}

void CheckProcessLimit(const LimitFacts& facts, Findings* findings) {
  const char* name = "user_processes";
  const std::optional<uint64_t>& soft = facts.processes.soft;
  const std::string found = absl::StrCat("processes and threads of this user: ", CountText(soft));
  if (facts.may_exceed_processes || !IsBelow(soft, kEnoughProcesses)) {
    findings->Ok(name, found);
    return;
  }
  const Advice advice{found,
                      "each worker has dozens of threads, and its data loaders are processes: "
                      "starts fail with 'Resource temporarily unavailable'",
                      "`ulimit -u 65536`; for good TasksMax= and LimitNPROC= in a systemd unit, or "
                      "nproc in /etc/security/limits.conf"};
  findings->Add(IsBelow(soft, kFewProcesses) ? Severity::kProblem : Severity::kWarning, name,
                advice);
}

void CheckPids(const LimitFacts& facts, Findings* findings) {
  const char* name = "pids_cgroup";
  if (!facts.pids_max.has_value()) {
    findings->Ok(name, "no limit of processes by a cgroup");
    return;
  }
  const uint64_t left = *facts.pids_max - std::min(facts.pids_used, *facts.pids_max);
  const std::string found = absl::StrCat("the cgroup allows ", *facts.pids_max,
                                         " processes and threads, ", left, " of them are left");
  if (left >= kEnoughPids) {
    findings->Ok(name, found);
    return;
  }
  findings->Add(left < kFewPids ? Severity::kProblem : Severity::kWarning, name,
                {found, "each worker has dozens of threads: fork and thread starts fail",
                 "docker run --pids-limit=-1; Kubernetes: podPidsLimit of the kubelet; systemd: "
                 "TasksMax=infinity"});
}

void CheckLockedMemory(const LimitFacts& facts, Findings* findings) {
  const char* name = "locked_memory";
  const std::optional<uint64_t>& soft = facts.locked_memory.soft;
  const std::string found = absl::StrCat("locked memory: ", LimitText(soft));
  if (!facts.has_rdma || facts.may_lock_memory || !soft.has_value()) {
    findings->Ok(name, found);
    return;
  }
  findings->Add(*soft < kLittleLocked ? Severity::kProblem : Severity::kWarning, name,
                {found,
                 "this machine has RDMA cards, whose buffers must be locked: NCCL fails with "
                 "'ibv_reg_mr failed: Cannot allocate memory'",
                 "`ulimit -l unlimited`; docker run --ulimit memlock=-1; systemd: "
                 "LimitMEMLOCK=infinity (for Slurm in slurmd's unit)"});
}

void CheckCore(const Limit& core, Findings* findings) {
  if (core.soft == uint64_t{0}) {
    findings->Note("core_size",
                   {"core files are off", "a crash in native code leaves nothing to look into",
                    "`ulimit -c unlimited` before the start"});
  } else {
    findings->Ok("core_size", absl::StrCat("core files: ", LimitText(core.soft)));
  }
}

void CheckStack(const Limit& stack, Findings* findings) {
  const std::string found = absl::StrCat("stack: ", LimitText(stack.soft));
  if (IsBelow(stack.soft, kSmallStack)) {
    findings->Warn("stack", {found, "threads get as much, and crash where they need more",
                             "`ulimit -s 8192`"});
  } else {
    findings->Ok("stack", found);
  }
}

}  // namespace

std::vector<Finding> CheckLimits(const LimitFacts& facts) {
  Findings findings(CheckGroup::kLimits);
  CheckOpenFiles(facts.open_files, &findings);
  CheckProcessLimit(facts, &findings);
  CheckPids(facts, &findings);
  CheckLockedMemory(facts, &findings);
  CheckCore(facts.core, &findings);
  CheckStack(facts.stack, &findings);
  return findings.Take();
}

}  // namespace fsdprun::doctor
