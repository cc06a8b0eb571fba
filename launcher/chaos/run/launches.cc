#include "launcher/chaos/run/launches.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "agent/process/orphans.h"
#include "agent/process/process_scan.h"
#include "base/unique_fd.h"

namespace fsdprun::chaos {
namespace {

constexpr Duration kStepInterval = std::chrono::milliseconds(50);
/// What killed processes have left is waited for so often, while nothing depends on it.
constexpr Duration kReapInterval = std::chrono::seconds(1);
/// Of the destructor, for what it kills.
constexpr Duration kLastWait = std::chrono::seconds(1);
constexpr int kLastWaitOfOneMs = 10;

/// All below this process.
std::vector<ProcessInfo> Descendants() {
  std::vector<ProcessInfo> processes;
  ScanDescendants(::getpid(), {}, processes);
  std::vector<char> is_below(processes.size());
  for (size_t i = 0; i < processes.size(); ++i) {
    is_below[i] = processes[i].pid == ::getpid();
  }
  MarkDescendants(processes, is_below);
  std::vector<ProcessInfo> below;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (is_below[i] && processes[i].pid != ::getpid() && !processes[i].IsDead()) {
      below.push_back(processes[i]);
    }
  }
  return below;
}

/// With a short wait: it was killed.
void AwaitEnd(const ProcessInfo& process) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  pollfd end{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  ::poll(&end, 1, kLastWaitOfOneMs);
}

}  // namespace

Launches::Launches(EventLoop& loop, const Environment& environment, Hooks hooks)
    : loop_(loop), environment_(environment), hooks_(std::move(hooks)) {
  BecomeSubreaper();
}

Launches::~Launches() {
  loop_.Cancel(timer_);
  if (is_over_ || launches_.empty()) {
    return;
  }
  for (const Launch& launch : launches_) {
    if (launch.process != nullptr) {
      launch.process->Kill();
    }
  }
  const MonoTime end = MonoNow() + kLastWait;
  while (KillOrphans({}) > 0 && MonoNow() < end) {
    for (const ProcessInfo& process : Descendants()) {
      AwaitEnd(process);
    }
  }
}

void Launches::StartJob(const std::vector<std::string>& command) {
  launches_.push_back({.command = command, .environment = environment_});
  StartAll(LaunchMachine::Form::kJob, {"the job's command"});
}

void Launches::StartNodes(const std::vector<std::string>& coordinator,
                          const std::vector<std::vector<std::string>>& nodes,
                          const std::vector<Environment>& variables) {
  std::vector<std::string> names{"the coordinator"};
  launches_.push_back({.command = coordinator, .environment = environment_});
  for (size_t i = 0; i < nodes.size(); ++i) {
    names.push_back(absl::StrCat("the launcher of node ", i));
    Environment environment = variables[i];
    environment.insert(environment_.begin(), environment_.end());
    launches_.push_back({.command = nodes[i], .environment = std::move(environment)});
  }
  StartAll(LaunchMachine::Form::kNodes, names);
}

void Launches::StartAll(LaunchMachine::Form form, const std::vector<std::string>& names) {
  machine_.emplace(form, names);
  reaped_at_ = MonoNow();
  StepSoon();
}

void Launches::Start(size_t index) {
  Launch& launch = launches_[index];
  launch.process = std::make_unique<ChildProcess>(
      loop_, ChildProcess::Hooks{[this, index](const ChildProcess::Pipes&) {
                                   machine_->OnStarted(index, MonoNow());
                                 },
                                 [this, index](int code) {
                                   machine_->OnEnd(index, MonoNow(), code);
                                   StepSoon();
                                 },
                                 [this, index](const absl::Status& why) {
                                   machine_->OnCannotStart(index, MonoNow(), why);
                                   StepSoon();
                                 }});
  using Stream = ChildProcess::Stream;
  launch.process->Start(launch.command, launch.environment,
                        {Stream::kNothing, Stream::kOfLauncher, Stream::kOfLauncher});
}

void Launches::StepSoon() {
  loop_.Cancel(timer_);
  timer_ = is_over_ ? 0 : loop_.At(MonoNow(), [this] { Tick(); });
}

void Launches::Tick() {
  int rest = 0;
  if (machine_->LooksForRest() || MonoNow() - reaped_at_ > kReapInterval) {
    rest = ReapRest();
  }
  // Before anything that a hook does about it.
  timer_ = loop_.At(MonoNow() + kStepInterval, [this] { Tick(); });
  for (const LaunchMachine::Action& action : machine_->Step(MonoNow(), rest)) {
    Carry(action);
  }
}

void Launches::Carry(const LaunchMachine::Action& action) {
  using Kind = LaunchMachine::Action::Kind;
  switch (action.kind) {
    case Kind::kStart:
      return Start(action.index);
    case Kind::kSignal:
      return launches_[action.index].process->Signal(action.signal);
    case Kind::kSignalGroup:
      return launches_[action.index].process->Signal(action.signal, ChildProcess::Reach::kGroup);
    case Kind::kSignalMembers:
      return SignalMembers(action.index, action.signal);
    case Kind::kSignalRest:
      return SignalRest(action.signal);
    case Kind::kKillAll:
      return KillEverything();
    case Kind::kSay:
      return hooks_.on_line(action.text);
    case Kind::kGiveUp:
      return hooks_.on_cannot(absl::UnavailableError(action.text));
    case Kind::kOver:
      is_over_ = true;
      loop_.Cancel(timer_);
      return hooks_.on_job_end(action.code);
  }
}

bool Launches::IsAnyStarting() const {
  return std::any_of(launches_.begin(), launches_.end(),
                     [](const Launch& launch) { return launch.IsStarting(); });
}

std::set<pid_t> Launches::RunningPids() const {
  std::set<pid_t> pids;
  for (const Launch& launch : launches_) {
    if (launch.IsRunning()) {
      pids.insert(launch.process->pid());
    }
  }
  return pids;
}

// Returns how many are left below this process. One that is being started cannot be told from them.
int Launches::ReapRest() {
  reaped_at_ = MonoNow();
  if (IsAnyStarting()) {
    return 0;
  }
  const std::set<pid_t> running = RunningPids();
  for (const pid_t child : ListChildren()) {
    if (running.count(child) == 0) {
      ::waitpid(child, nullptr, WNOHANG);
    }
  }
  return static_cast<int>(Descendants().size());
}

// It leads its own.
void Launches::SignalMembers(size_t index, int signal) const {
  if (!launches_[index].IsRunning()) {
    return;
  }
  const pid_t leader = launches_[index].process->pid();
  for (const ProcessInfo& process : Descendants()) {
    if (process.pid != leader && ::getpgid(process.pid) == leader) {
      SignalExactly(process, signal);
    }
  }
}

// Those below them are theirs to end, as long as they are there.
void Launches::SignalRest(int signal) {
  for (const ProcessInfo& process : Descendants()) {
    if (process.parent == ::getpid() &&
        signalled_.insert({process.pid, process.start_time_ticks}).second) {
      SignalExactly(process, signal);
    }
  }
}

void Launches::KillEverything() {
  for (const Launch& launch : launches_) {
    if (launch.process != nullptr) {
      launch.process->Signal(SIGKILL);
    }
  }
  if (!IsAnyStarting()) {
    KillOrphans(RunningPids());
  }
}

void Launches::OnKilled(int64_t pid) {
  for (size_t i = 0; i < launches_.size(); ++i) {
    if (launches_[i].IsRunning() && launches_[i].process->pid() == pid) {
      machine_->OnKilled(i);
    }
  }
}

void Launches::End(int signal) {
  machine_->End(MonoNow(), signal);
  StepSoon();
}

void Launches::Pass(int signal) {
  machine_->Pass(signal);
  StepSoon();
}

void Launches::KillAll() {
  machine_->KillAll(MonoNow());
  StepSoon();
}

std::map<int64_t, int> Launches::launchers() const {
  std::map<int64_t, int> pids;
  for (size_t i = 1; i < launches_.size(); ++i) {
    if (launches_[i].IsRunning()) {
      pids[launches_[i].process->pid()] = static_cast<int>(i) - 1;
    }
  }
  return pids;
}

}  // namespace fsdprun::chaos
