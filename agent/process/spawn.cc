#include "agent/process/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "agent/process/bare_call.h"
#include "proto/worker_contract.h"

namespace fsdprun::keeper {
namespace {

/// What execvp uses when PATH is unset.
constexpr std::string_view kDefaultPath = "/bin:/usr/bin";

std::string_view FindPath(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    if (entry.rfind("PATH=", 0) == 0) {
      return std::string_view(entry).substr(5);
    }
  }
  return kDefaultPath;
}

std::vector<std::string> ListCandidates(const std::string& program, std::string_view path) {
  if (program.empty() || program.find('/') != std::string::npos) {
    return {program};
  }
  std::vector<std::string> candidates;
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find(':', start), path.size());
    const std::string_view folder = path.substr(start, end - start);
    // An empty entry means the working directory.
    candidates.push_back(folder.empty() ? program : std::string(folder) + "/" + program);
    start = end + 1;
  }
  return candidates;
}

std::vector<const char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<const char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    pointers.push_back(text.c_str());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<unsigned long> MaskOf(const std::vector<int32_t>& cpus) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int32_t cpu : cpus) {
    const auto bit = static_cast<size_t>(cpu);
    mask.resize(std::max(mask.size(), bit / kBits + 1));
    mask[bit / kBits] |= 1UL << (bit % kBits);
  }
  return mask;
}

// --- The child, in the keeper's memory: see Note [The child's memory]

[[noreturn]] void FailChild(const SpawnPlan& plan, ChildFailure::Step step, long error,
                            int candidate) {
  const ChildFailure failure{step, static_cast<int32_t>(error), candidate};
  BareCall(SYS_write, plan.child.failure_pipe, Word(&failure), sizeof(failure));
  for (;;) {
    BareCall(SYS_exit_group, 127);
  }
}

/// As the kernel has it: the handler and its mask, all zero for the default.
struct KernelSigaction {
  uint64_t words[4] = {};
};
constexpr size_t kKernelSigsetBytes = 8;

void ResetSignals() {
  const KernelSigaction default_action;
  for (int signal = 1; signal <= 64; ++signal) {
    BareCall(SYS_rt_sigaction, signal, Word(&default_action), 0,
             kKernelSigsetBytes);  // Fails for KILL and STOP.
  }
  constexpr uint64_t kNone = 0;
  BareCall(SYS_rt_sigprocmask, SIG_SETMASK, Word(&kNone), 0, kKernelSigsetBytes);
}

/// 0 or an error.
long ReadNothing() {
  const long null = BareCall(SYS_openat, AT_FDCWD, Word("/dev/null"), O_RDONLY | O_CLOEXEC);
  return std::min(null < 0 ? null : BareCall(SYS_dup3, null, STDIN_FILENO), 0L);
}

/// 0 or an error.
long ConnectStreams(const SpawnPlan& plan) {
  const ChildFds& fds = plan.child.fds;
  long error = 0;
  if (fds.stdout_fd >= 0) {
    error = std::min(error, BareCall(SYS_dup3, fds.stdout_fd, STDOUT_FILENO));
  }
  if (fds.stderr_fd >= 0) {
    error = std::min(error, BareCall(SYS_dup3, fds.stderr_fd, STDERR_FILENO));
  }
  if (fds.control_fd >= 0) {
    error = std::min(error, BareCall(SYS_fcntl, fds.control_fd, F_SETFD, 0));
  }
  return error < 0 || plan.reads_stdin ? error : ReadNothing();
}

void LimitDescriptors(uint64_t soft_limit) {
  rlimit64 limit{};
  if (soft_limit > 0 && BareCall(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, Word(&limit)) == 0) {
    limit.rlim_cur = std::min<uint64_t>(soft_limit, limit.rlim_max);
    BareCall(SYS_prlimit64, 0, RLIMIT_NOFILE, Word(&limit), 0);
  }
}

bool IsNothingThere(long error) { return error == -ENOENT || error == -ENOTDIR; }

/// Also for a folder that is none. To ask costs much less than execve, which copies the arguments
/// and the environment first.
bool IsMissing(const char* path) {
  return IsNothingThere(BareCall(SYS_faccessat, AT_FDCWD, Word(path), F_OK));
}

/// As glibc: of a folder that may not be searched, or whose file server is gone, others are tried.
bool MayBeElsewhere(long error) {
  return error == -EACCES || error == -ESTALE || error == -ENODEV || error == -ETIMEDOUT;
}

/// As execvpe: tries each candidate, and reports the most informative error if none ran.
[[noreturn]] void Exec(SpawnPlan& plan) {
  long error = -ENOENT;
  int candidate = 0;
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    const char* path = plan.candidates[i].c_str();
    if (IsMissing(path)) {
      continue;
    }
    long result = BareCall(SYS_execve, Word(path), Word(plan.argv.data()), Word(plan.envp.data()));
    if (result == -ENOEXEC) {
      plan.shell_argv[1] = path;
      result = BareCall(SYS_execve, Word("/bin/sh"), Word(plan.shell_argv.data()),
                        Word(plan.envp.data()));
    }
    if (IsNothingThere(result)) {
      continue;
    }
    error = result;
    candidate = static_cast<int>(i);
    if (!MayBeElsewhere(error)) {
      break;
    }
  }
  FailChild(plan, ChildFailure::Step::kExec, -error, candidate);
}

int RunChild(void* argument) {
  using Step = ChildFailure::Step;
  SpawnPlan& plan = *static_cast<SpawnPlan*>(argument);
  if (const long session = BareCall(SYS_setsid); session < 0) {
    FailChild(plan, Step::kSession, -session, 0);
  }
  BareCall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (BareCall(SYS_getppid) != plan.child.keeper) {
    FailChild(plan, Step::kParentDied, ESRCH, 0);  // It died before prctl took effect.
  }
  if (plan.child.tracer > 1) {
    // Where only ancestors may trace (Yama), what the agent starts to read stacks may, too.
    BareCall(SYS_prctl, PR_SET_PTRACER, plan.child.tracer);
  }
  if (const long error = ConnectStreams(plan); error < 0) {
    FailChild(plan, Step::kStreams, -error, 0);
  }
  if (!plan.cpu_mask.empty()) {
    // Not glibc's sched_setaffinity, whose masks have a fixed size.
    const long error = BareCall(SYS_sched_setaffinity, 0,
                                static_cast<long>(plan.cpu_mask.size() * sizeof(plan.cpu_mask[0])),
                                Word(plan.cpu_mask.data()));
    if (error < 0) {
      FailChild(plan, Step::kCpus, -error, 0);
    }
  }
  ResetSignals();
  LimitDescriptors(plan.descriptor_limit);
  Exec(plan);
}

/// Not by clone3, which some container runtimes refuse. -1 with errno if that fails.
pid_t Clone(SpawnPlan& plan, int& pidfd) {
  constexpr unsigned long kFlags = CLONE_PIDFD | SIGCHLD;
  static const bool kMayShareMemory = [] {
    utsname system = {};
    return ::uname(&system) == 0 && MayShareMemory(system.release);
  }();
  if (kHasBareCalls && kMayShareMemory) {
    return ::clone(RunChild, plan.stack.get() + SpawnPlan::kStackBytes,
                   static_cast<int>(kFlags | CLONE_VM), &plan, &pidfd);
  }
  // A copy runs on its copy of our stack. The third argument is the pidfd on every architecture.
  const long pid = ::syscall(SYS_clone, kFlags, nullptr, &pidfd, nullptr, nullptr);
  if (pid == 0) {
    RunChild(&plan);
  }
  return static_cast<pid_t>(pid);
}

}  // namespace

SpawnPlan::SpawnPlan(const SpawnCommand& command, int control_fd)
    : candidates(ListCandidates(command.argv.front(), FindPath(command.environment))),
      arguments(command.argv),
      environment(command.environment),
      argv(Pointers(arguments)),
      descriptor_limit(command.descriptor_limit),
      cpu_mask(MaskOf(command.cpus)),
      reads_stdin(command.reads_stdin),
      stack(new std::byte[kStackBytes]) {
  if (control_fd >= 0) {
    environment.push_back(std::string(contract::kEnvControlFd) + "=" + std::to_string(control_fd));
  }
  envp = Pointers(environment);
  shell_argv = {"/bin/sh", nullptr};
  shell_argv.insert(shell_argv.end(), argv.begin() + 1, argv.end());
}

bool MayShareMemory(const char* release) {
  char* end = nullptr;
  const long major = std::strtol(release, &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return std::pair(major, minor) >= std::pair(5L, 16L);
}

StartedChild StartChild(SpawnPlan& plan, const ChildFds& fds) {
  StartedChild child;
  int failure[2];
  if (::pipe2(failure, O_CLOEXEC) != 0) {
    child.error = errno;
    return child;
  }
  plan.child = {
      .fds = fds, .failure_pipe = failure[1], .keeper = ::getpid(), .tracer = ::getppid()};
  const pid_t pid = Clone(plan, child.pidfd);
  const int error = errno;
  ::close(failure[1]);
  if (pid < 0) {
    ::close(failure[0]);
    child.error = error;
    child.pidfd = -1;
    return child;
  }
  ::fcntl(failure[0], F_SETFL, O_NONBLOCK);
  child.pid = pid;
  child.failure_pipe = failure[0];
  return child;
}

SpawnFailedReport Describe(const ChildFailure& failure, const SpawnPlan& plan, int local_rank) {
  SpawnFailedReport report{.local_rank = local_rank, .error = failure.error};
  switch (failure.step) {
    case ChildFailure::Step::kSession:
      report.attempted = "start a session for";
      break;
    case ChildFailure::Step::kParentDied:
      report.attempted = "keep the parent alive for";
      break;
    case ChildFailure::Step::kStreams:
      report.attempted = "connect the standard streams of";
      break;
    case ChildFailure::Step::kCpus:
      report.attempted = "bind to the CPUs of --numa-binding";
      break;
    case ChildFailure::Step::kExec:
      report.attempted = "run";
      // A program that is in no directory of PATH is named as the user wrote it.
      report.path = failure.error == ENOENT && plan.candidates.size() > 1
                        ? plan.argv.front()
                        : plan.candidates[static_cast<size_t>(failure.candidate)];
      return report;
  }
  report.path = plan.argv.front();
  return report;
}

}  // namespace fsdprun::keeper
