#include "launcher/chaos/run/launches.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun::chaos {
namespace {

using Stream = ChildProcess::Stream;

/// Before a launcher is started again that has ended.
constexpr Duration kRestartPause = std::chrono::milliseconds(300);
/// How long launchers have to end once the job is over, until they are told to, and then killed.
constexpr Duration kLaunchersPatience = std::chrono::seconds(20);
constexpr Duration kTermPatience = std::chrono::seconds(60);

}  // namespace

Launches::Launches(EventLoop& loop, const Environment& environment, Hooks hooks)
    : loop_(loop), environment_(environment), hooks_(std::move(hooks)) {}

Launches::~Launches() {
  for (const EventLoop::TimerId timer : timers_) {
    loop_.Cancel(timer);
  }
  for (const Launch& launch : launches_) {
    loop_.Cancel(launch.restart);
  }
}

void Launches::StartJob(const std::vector<std::string>& command) {
  Add("the job", command);
  Start(0);
}

void Launches::StartNodes(const std::vector<std::string>& coordinator,
                          const std::vector<std::vector<std::string>>& nodes) {
  Add("the coordinator", coordinator);
  for (size_t i = 0; i < nodes.size(); ++i) {
    Add(absl::StrCat("the launcher of node ", i), nodes[i]);
  }
  for (size_t i = 0; i < launches_.size(); ++i) {
    Start(i);
  }
}

void Launches::Add(std::string name, std::vector<std::string> command) {
  launches_.push_back({.name = std::move(name), .command = std::move(command)});
}

void Launches::Start(size_t index) {
  Launch& launch = launches_[index];
  launch.restart = 0;
  launch.process = std::make_unique<ChildProcess>(
      loop_, ChildProcess::Hooks{[this, index](const ChildProcess::Pipes&) {
                                   launches_[index].pid = launches_[index].process->pid();
                                 },
                                 [this, index](int code) { OnEnd(index, code); },
                                 [this](const absl::Status& why) { hooks_.on_failure(why); }});
  launch.process->Start(launch.command, environment_,
                        {Stream::kNothing, Stream::kOfLauncher, Stream::kOfLauncher});
}

bool Launches::IsRunning(const Launch& launch) const {
  return launch.process != nullptr &&
         (launch.process->is_running() || launch.process->is_starting());
}

void Launches::OnEnd(size_t index, int code) {
  Launch& launch = launches_[index];
  const bool was_killed = killed_.erase(launch.pid) > 0;
  launch.pid = 0;
  const bool is_first = index == 0;
  const bool is_restarted =
      !is_over_ && !is_told_to_end_ && (is_first ? was_killed && launches_.size() > 1 : code != 0);
  if (is_restarted) {
    if (!was_killed) {
      hooks_.on_line(absl::StrCat(launch.name, " has ended with ", code,
                                  " before the job was over, and is started again"));
    }
    launch.restart = loop_.At(MonoNow() + kRestartPause, [this, index] { Start(index); });
    return;
  }
  if (is_first) {
    BeginEnd(code);
  }
  EndIfAllEnded();
}

void Launches::BeginEnd(int code) {
  is_over_ = true;
  code_ = code;
  for (Launch& launch : launches_) {
    loop_.Cancel(std::exchange(launch.restart, 0));
  }
  timers_.push_back(loop_.At(MonoNow() + kLaunchersPatience, [this] { SignalNodes(SIGTERM); }));
  timers_.push_back(
      loop_.At(MonoNow() + kLaunchersPatience + kTermPatience, [this] { SignalNodes(SIGKILL); }));
}

void Launches::EndIfAllEnded() {
  const bool is_any_left = std::any_of(launches_.begin(), launches_.end(),
                                       [this](const Launch& launch) { return IsRunning(launch); });
  if (is_over_ && !is_any_left && !std::exchange(has_told_, true)) {
    // The process that has ended is still on the stack.
    timers_.push_back(loop_.At(MonoNow(), [this] { hooks_.on_job_end(code_); }));
  }
}

void Launches::SignalNodes(int signal) {
  for (const Launch& launch : launches_) {
    if (launch.process != nullptr && launch.process->is_running()) {
      launch.process->Signal(signal);
    }
  }
}

void Launches::End(int signal) {
  is_told_to_end_ = true;
  for (Launch& launch : launches_) {
    loop_.Cancel(std::exchange(launch.restart, 0));
  }
  if (launches_.empty() || !IsRunning(launches_.front())) {
    // Nobody is there who could end the others.
    BeginEnd(1);
    SignalNodes(signal);
    EndIfAllEnded();
    return;
  }
  launches_.front().process->Signal(signal);
}

void Launches::KillAll() {
  is_told_to_end_ = true;
  SignalNodes(SIGKILL);
}

std::map<int64_t, int> Launches::launchers() const {
  std::map<int64_t, int> pids;
  for (size_t i = 1; i < launches_.size(); ++i) {
    if (launches_[i].pid != 0) {
      pids[launches_[i].pid] = static_cast<int>(i) - 1;
    }
  }
  return pids;
}

int64_t Launches::first_pid() const { return launches_.empty() ? 0 : launches_.front().pid; }

}  // namespace fsdprun::chaos
