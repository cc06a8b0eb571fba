#include "agent/process/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

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

// --- The child: async-signal-safe calls only, nothing is allocated

[[noreturn]] void FailChild(int failure_pipe, ChildFailure::Step step, int error, int candidate) {
  const ChildFailure failure{step, error, candidate};
  [[maybe_unused]] const ssize_t n = ::write(failure_pipe, &failure, sizeof(failure));
  ::_exit(127);
}

void ResetSignals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal <= 64; ++signal) {
    ::sigaction(signal, &action,
                nullptr);  // Fails for KILL, STOP and libc's own signals, which need no reset.
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool ReadNothing() {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return null >= 0 && ::dup2(null, STDIN_FILENO) == STDIN_FILENO;
}

bool ConnectStreams(const ChildFds& fds) {
  if (fds.stdout_fd >= 0 && ::dup2(fds.stdout_fd, STDOUT_FILENO) < 0) {
    return false;
  }
  if (fds.stderr_fd >= 0 && ::dup2(fds.stderr_fd, STDERR_FILENO) < 0) {
    return false;
  }
  return fds.control_fd < 0 || ::fcntl(fds.control_fd, F_SETFD, 0) == 0;
}

void LimitDescriptors(uint64_t soft_limit) {
  rlimit limit{};
  if (soft_limit > 0 && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = std::min<rlim_t>(soft_limit, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/// Not glibc's sched_setaffinity, whose masks have a fixed size.
bool BindCpus(const std::vector<unsigned long>& mask) {
  return ::syscall(SYS_sched_setaffinity, 0, mask.size() * sizeof(mask[0]), mask.data()) == 0;
}

/// As execvpe: tries each candidate, and reports the most informative error if none ran.
[[noreturn]] void Exec(const SpawnPlan& plan, const std::vector<const char*>& shell_argv,
                       int failure_pipe) {
  int error = ENOENT;
  int candidate = 0;
  auto* envp = const_cast<char* const*>(plan.envp.data());
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    const char* path = plan.candidates[i].c_str();
    ::execve(path, const_cast<char* const*>(plan.argv.data()), envp);
    if (errno == ENOEXEC) {
      const_cast<std::vector<const char*>&>(shell_argv)[1] = path;
      ::execve("/bin/sh", const_cast<char* const*>(shell_argv.data()), envp);
    }
    if (errno == ENOENT || errno == ENOTDIR) {
      continue;
    }
    error = errno;
    candidate = static_cast<int>(i);
    if (error != EACCES) {
      break;
    }
  }
  FailChild(failure_pipe, ChildFailure::Step::kExec, error, candidate);
}

[[noreturn]] void RunChild(const SpawnPlan& plan, const ChildFds& fds, int failure_pipe,
                           pid_t keeper) {
  using Step = ChildFailure::Step;
  if (::setsid() < 0) {
    FailChild(failure_pipe, Step::kSession, errno, 0);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) {
    FailChild(failure_pipe, Step::kParentDied, ESRCH, 0);  // It died before prctl took effect.
  }
  if (!ConnectStreams(fds) || (!plan.reads_stdin && !ReadNothing())) {
    FailChild(failure_pipe, Step::kStreams, errno, 0);
  }
  if (!plan.cpu_mask.empty() && !BindCpus(plan.cpu_mask)) {
    FailChild(failure_pipe, Step::kCpus, errno, 0);
  }
  ResetSignals();
  LimitDescriptors(plan.descriptor_limit);
  Exec(plan, plan.shell_argv, failure_pipe);
}

}  // namespace

SpawnPlan::SpawnPlan(const SpawnCommand& command, int control_fd)
    : candidates(ListCandidates(command.argv.front(), FindPath(command.environment))),
      arguments(command.argv),
      environment(command.environment),
      argv(Pointers(arguments)),
      descriptor_limit(command.descriptor_limit),
      cpu_mask(MaskOf(command.cpus)),
      reads_stdin(command.reads_stdin) {
  if (control_fd >= 0) {
    environment.push_back(std::string(contract::kEnvControlFd) + "=" + std::to_string(control_fd));
  }
  envp = Pointers(environment);
  shell_argv = {"/bin/sh", nullptr};
  shell_argv.insert(shell_argv.end(), argv.begin() + 1, argv.end());
}

StartedChild StartChild(const SpawnPlan& plan, const ChildFds& fds) {
  StartedChild child;
  int failure[2];
  if (::pipe2(failure, O_CLOEXEC) != 0) {
    child.error = errno;
    return child;
  }
  const pid_t keeper = ::getpid();
  // Without CLONE_VM: the keeper must not block while the child waits for a slow disk inside exec.
  // Not clone3, which some container runtimes refuse; the third argument is the pidfd on every
  // architecture.
  const long pid = ::syscall(SYS_clone, static_cast<unsigned long>(CLONE_PIDFD | SIGCHLD), nullptr,
                             &child.pidfd, nullptr, nullptr);
  if (pid == 0) {
    RunChild(plan, fds, failure[1], keeper);
  }
  const int error = errno;
  ::close(failure[1]);
  if (pid < 0) {
    ::close(failure[0]);
    child.error = error;
    child.pidfd = -1;
    return child;
  }
  ::fcntl(failure[0], F_SETFL, O_NONBLOCK);
  child.pid = static_cast<pid_t>(pid);
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
