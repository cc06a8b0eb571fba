#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/head_coordinator.h"
#include "launcher/run/job_output.h"
#include "launcher/run/signals.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// A job whose nodes are all in a list, and whose parts are run there by somebody else: the
/// coordinator in this process, who of the nodes is gone, and when that, or the job's outcome, is
/// the end. How parts are begun and ended is their business (Parts). Thread: the main thread, which
/// also runs the loop.
class RemoteJob {
 public:
  static constexpr Duration kLostPartTimeout = std::chrono::seconds(3);

  struct Node {
    std::string name;
    AgentHost host;
    /// Why it takes no part, or no part any more; empty: it may.
    std::string gone;
    /// It had joined, and its agent was not connected when the job was decided.
    bool is_lost = false;
  };

  /// The nodes' parts of the job, each by the index of its node. Owned by whoever owns the job.
  class Parts {
   public:
    /// Before the coordinator starts: the job's token; empty: see HeadCoordinator::Start().
    virtual absl::StatusOr<std::string> Prepare() = 0;
    /// Called once, on the loop or before it runs: the coordinator is there.
    virtual void StartAll() = 0;
    /// After every step of the coordinator.
    virtual void OnStep() {}
    /// The reader of their output takes more.
    virtual void Resume() = 0;
    /// The job has an outcome. Of lost nodes, output is waited for until kLostPartTimeout only: who
    /// waits for the result of a job does not wait for a machine that is gone.
    virtual void OnOutcome() = 0;
    /// The same, and the node has not joined it: it has no output that could be lost.
    virtual void Release(size_t node) = 0;
    /// Nobody waits any longer for their output.
    virtual void ReleaseAll() = 0;
    /// An operator does not wait any longer for their ends either.
    virtual void LeaveAll() = 0;
    /// Not begun, or it has ended, or nothing more will be heard of it.
    virtual bool IsOver(size_t node) const = 0;
    /// What is done with parts that do not end: "closing the connections to them".
    virtual std::string HowLeft() const = 0;
    /// A clause about parts that have not begun, after what the job waits for; may be empty.
    virtual std::string WaitDetails() const { return ""; }
    /// Says what of their output was lost, for a job that went well. False: nothing.
    virtual bool TellOfLostOutput() { return false; }

   protected:
    ~Parts() = default;
  };

  /// All must outlive it.
  RemoteJob(const LaunchPlan& plan, const Environment& environment, Parts& parts);
  ~RemoteJob();
  RemoteJob(const RemoteJob&) = delete;
  RemoteJob& operator=(const RemoteJob&) = delete;

  /// Runs until the job and all parts are over. Returns the exit code. Call once.
  int Run();

  /// In the list's order; the same ones from the constructor to the destructor.
  const std::vector<Node>& nodes() const { return nodes_; }
  EventLoop& loop() { return loop_; }
  JobOutput& output() { return output_; }
  /// Within Parts' methods, but not Prepare().
  HeadCoordinator& head() { return head_; }
  const HeadCoordinator& head() const { return head_; }

  /// What `node` is told, but for the token. `arguments`: of this program, without its name.
  v1::SessionSpec OrderFor(size_t node, const std::vector<std::string>& arguments) const;
  /// There is an outcome, or there will be none: parts are no longer begun.
  bool is_over() const { return outcome_.has_value() || !lost_reason_.empty(); }
  /// The same, or the coordinator knows the outcome and waits for the nodes to leave.
  bool is_decided() const { return is_decided_ || is_over(); }
  bool HasJoined(size_t node) const { return head_.joined().contains(nodes_[node].name); }
  /// By an operator: what is started there is started by nobody but one.
  bool IsDrained(const Node& node) const { return head_.drained().contains(node.name); }

  /// `node` takes no part any more. The coordinator finds out by itself what that means for a job
  /// that runs; but one that waits for nodes that cannot come is over.
  void OnGone(size_t node, const std::string& why);
  /// A part is over that may have been the last.
  void StopIfAllAreOver();

 private:
  absl::Status Start();
  void OnSignal(int signal);
  void OnFinish(const JobOutcome& outcome);
  void OnEndTimeout();
  void OnStep();
  void NoteWhoIsLost();
  void EndIfTooFewAreLeft();
  void ScheduleWaitNotice();
  int Finish();

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  Parts& parts_;
  const Clocks clocks_;

  EventLoop loop_;
  SignalWatcher signals_;
  JobOutput output_;
  HeadCoordinator head_;

  std::vector<Node> nodes_;
  bool has_started_ = false;
  /// The coordinator knows the outcome, and waits for the nodes to leave.
  bool is_decided_ = false;
  std::optional<JobOutcome> outcome_;
  /// Why the job is over although the coordinator has not said so.
  std::string lost_reason_;
  /// Any of the nodes.
  bool has_gone_ = false;
  /// JobMachine::revision() when it was last found out whether enough nodes are left: most steps
  /// are heartbeats, which change nothing.
  std::optional<uint64_t> judged_at_;
  EventLoop::TimerId end_timer_ = 0;
};

}  // namespace fsdprun
