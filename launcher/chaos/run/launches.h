#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "launcher/chaos/plan/launch_machine.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/child_process.h"

namespace fsdprun::chaos {

/// The processes that the job is started as, by LaunchMachine. A launcher of a node that ends
/// before the job is over, and a coordinator that was killed, are started again. Nothing that they
/// have started outlives the job, in whatever session or process group it is: this process becomes
/// the parent of what they leave, so it must have no other children meanwhile. Thread: loop thread
/// only, hooks too; a hook must not destroy it.
class Launches {
 public:
  struct Hooks {
    /// All processes have ended; with the job's exit code.
    std::function<void(int code)> on_job_end;
    /// A process cannot be started, or not be kept running: all are ended. Comes once, and before
    /// on_job_end.
    std::function<void(const absl::Status& why)> on_cannot;
    /// A line for the user.
    std::function<void(const std::string& line)> on_line;
  };

  Launches(EventLoop& loop, const Environment& environment, Hooks hooks);
  /// Kills what is left, with a short wait.
  ~Launches();
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  /// A command whose end is the job's.
  void StartJob(const std::vector<std::string>& command);
  /// A coordinator in a process of its own, whose end is the job's unless it was killed by us, and
  /// the launchers of the nodes. `variables`: of each node, before those of the environment.
  void StartNodes(const std::vector<std::string>& coordinator,
                  const std::vector<std::vector<std::string>>& nodes,
                  const std::vector<Environment>& variables);

  /// A process was killed on purpose: it may be one of these.
  void OnKilled(int64_t pid);
  /// The job is to end: whoever decides about it gets the signal.
  void End(int signal);
  /// Whoever has workers gets the signal.
  void Pass(int signal);
  /// All that runs gets SIGKILL.
  void KillAll();

  /// Launchers of nodes that run: pid to number.
  std::map<int64_t, int> launchers() const;

 private:
  struct Launch {
    std::vector<std::string> command;
    Environment environment;
    std::unique_ptr<ChildProcess> process;

    bool IsStarting() const { return process != nullptr && process->is_starting(); }
    bool IsRunning() const { return process != nullptr && process->is_running(); }
  };

  void StartAll(LaunchMachine::Form form, const std::vector<std::string>& names);
  void Start(size_t index);
  void StepSoon();
  void Tick();
  void Carry(const LaunchMachine::Action& action);
  void SignalMembers(size_t index, int signal) const;
  void SignalRest(int signal);
  void KillEverything();
  int ReapRest();
  bool IsAnyStarting() const;
  std::set<pid_t> RunningPids() const;

  // Constant after construction.
  EventLoop& loop_;
  const Environment environment_;
  const Hooks hooks_;

  // Owned by the loop thread.
  /// The first one is the coordinator, or the job.
  std::vector<Launch> launches_;
  std::optional<LaunchMachine> machine_;
  EventLoop::TimerId timer_ = 0;
  MonoTime reaped_at_{};
  /// Who has had the signal, by pid and start time.
  std::set<std::pair<pid_t, uint64_t>> signalled_;
  bool is_over_ = false;
};

}  // namespace fsdprun::chaos
