#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "absl/strings/numbers.h"
#include "base/unique_fd.h"
#include "fsdpctl/doctor/machine/cgroups.h"
#include "fsdpctl/doctor/machine/read_facts.h"
#include "fsdpctl/doctor/machine/system_files.h"
#include "launcher/run/cpu_list.h"
#include "launcher/run/machine.h"

namespace fsdprun::doctor {
namespace {

// Numbers of capabilities, by Linux's interface.
constexpr int kIpcLock = 14;
constexpr int kSysPtrace = 19;
constexpr int kSysResource = 24;

Limit LimitOf(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) {
    return {};
  }
  const auto value = [](rlim_t number) {
    return number == RLIM_INFINITY ? std::nullopt : std::optional<uint64_t>(number);
  };
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

bool HasCapability(const std::string& status, int number) {
  uint64_t mask = 0;
  return absl::SimpleHexAtoi(FieldOf(status, "CapEff"), &mask) && (mask >> number & 1) != 0;
}

}  // namespace

LimitFacts ReadLimits(const std::string& root) {
  const std::string status = TextOf(root + "/proc/self/status");
  const CgroupLimits cgroups = ReadCgroups(root);
  return {.open_files = LimitOf(RLIMIT_NOFILE),
          .processes = LimitOf(RLIMIT_NPROC),
          .locked_memory = LimitOf(RLIMIT_MEMLOCK),
          .core = LimitOf(RLIMIT_CORE),
          .stack = LimitOf(RLIMIT_STACK),
          .may_exceed_processes = ::geteuid() == 0 || HasCapability(status, kSysResource),
          .may_lock_memory = HasCapability(status, kIpcLock),
          .pids_max = cgroups.pids,
          .pids_used = cgroups.pids_used,
          .has_rdma = HasRdmaNodes(root) && NvidiaNodes(root) > 0};
}

MemoryFacts ReadMemory(const std::string& root) {
  const std::string memory = TextOf(root + "/proc/meminfo");
  const auto bytes = [&memory](const char* key) { return NumberOf(memory, key) * 1024; };
  const CgroupLimits cgroups = ReadCgroups(root);
  return {
      .total = bytes("MemTotal"),
      .available = bytes("MemAvailable"),
      .swap_total = bytes("SwapTotal"),
      .swap_free = bytes("SwapFree"),
      .cgroup_limit = cgroups.memory,
      .cgroup_used = cgroups.memory_used,
      .oom_score_adj = static_cast<int>(NumberIn(root + "/proc/self/oom_score_adj").value_or(0)),
      .overcommit = static_cast<int>(NumberIn(root + "/proc/sys/vm/overcommit_memory").value_or(0)),
      .max_map_count =
          static_cast<uint64_t>(NumberIn(root + "/proc/sys/vm/max_map_count").value_or(0))};
}

CpuFacts ReadCpus(const std::string& root, const Environment& environment) {
  const auto threads = environment.find("OMP_NUM_THREADS");
  const int allowed = DetectMachine(environment).usable_cpus;
  const auto online = ParseCpuList(TextOf(root + "/sys/devices/system/cpu/online"));
  return {.online = online.has_value() ? static_cast<int>(online->size()) : allowed,
          .allowed = allowed,
          .quota = ReadCgroups(root).cpus,
          .omp_threads = threads == environment.end() ? "" : threads->second,
          .is_in_slurm = environment.contains("SLURM_JOB_ID")};
}

ProcessFacts ReadProcesses() {
  const std::optional<int64_t> scope = NumberIn("/proc/sys/kernel/yama/ptrace_scope");
  const std::string status = TextOf("/proc/self/status");
  const UniqueFd own(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const int pidfd_error = own.valid() ? 0 : errno;
  int is_subreaper = 0;
  const int answer = ::prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
  ProcessFacts facts{.has_proc = !status.empty(),
                     .pidfd_error = pidfd_error,
                     .subreaper_error = answer == 0 ? 0 : errno,
                     .may_trace = HasCapability(status, kSysPtrace)};
  if (scope.has_value()) {
    facts.ptrace_scope = static_cast<int>(*scope);
  }
  return facts;
}

ClockFacts ReadClock() {
  timex state{};
  const int answer = ::adjtimex(&state);
  return {.is_known = answer >= 0,
          .is_synchronised = answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0,
          .max_error_ms = static_cast<double>(state.maxerror) / 1e3,
          .unix_seconds = static_cast<int64_t>(std::time(nullptr)),
          .source = TextOf("/sys/devices/system/clocksource/clocksource0/current_clocksource")};
}

}  // namespace fsdprun::doctor
