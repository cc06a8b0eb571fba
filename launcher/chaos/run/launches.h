#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/child_process.h"

namespace fsdprun::chaos {

/// The processes that the job is started as. A launcher of a node that ends before the job is over,
/// and a coordinator that was killed, are started again, as a service manager does it. Thread: loop
/// thread only, hooks too; a hook must not destroy it.
class Launches {
 public:
  struct Hooks {
    /// All processes have ended; with the job's exit code.
    std::function<void(int code)> on_job_end;
    /// In its place: a program cannot be started.
    std::function<void(const absl::Status& why)> on_failure;
    /// A line for the user.
    std::function<void(const std::string& line)> on_line;
  };

  Launches(EventLoop& loop, const Environment& environment, Hooks hooks);
  ~Launches();
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  /// A command whose end is the job's.
  void StartJob(const std::vector<std::string>& command);
  /// A coordinator in a process of its own, whose end is the job's unless it was killed by us, and
  /// the launchers of the nodes.
  void StartNodes(const std::vector<std::string>& coordinator,
                  const std::vector<std::vector<std::string>>& nodes);

  /// A process was killed on purpose: it may be one of these.
  void OnKilled(int64_t pid) { killed_.insert(pid); }
  /// The job is to end: whoever decides about it gets the signal.
  void End(int signal);
  /// All that runs gets SIGKILL.
  void KillAll();

  /// Launchers of nodes that run: pid to number.
  std::map<int64_t, int> launchers() const;
  /// Of the one that was started first; 0 if it does not run.
  int64_t first_pid() const;

 private:
  struct Launch {
    std::string name;
    std::vector<std::string> command;
    int64_t pid = 0;
    std::unique_ptr<ChildProcess> process;
    EventLoop::TimerId restart = 0;
  };

  void Add(std::string name, std::vector<std::string> command);
  void Start(size_t index);
  void OnEnd(size_t index, int code);
  void BeginEnd(int code);
  void EndIfAllEnded();
  bool IsRunning(const Launch& launch) const;
  void SignalNodes(int signal);

  // Constant after construction.
  EventLoop& loop_;
  const Environment environment_;
  const Hooks hooks_;

  // Owned by the loop thread.
  /// The first one is the coordinator, or the job.
  std::vector<Launch> launches_;
  std::set<int64_t> killed_;
  bool is_told_to_end_ = false;
  bool is_over_ = false;
  bool has_told_ = false;
  int code_ = 0;
  std::vector<EventLoop::TimerId> timers_;
};

}  // namespace fsdprun::chaos
