#pragma once

// How long a job waits for nodes before it forms a world, or before it stops one that runs so that
// others can join.

#include <algorithm>
#include <utility>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"

namespace fsdprun {

/// The waits between two worlds; meaningful while there is none.
class Rendezvous {
 public:
  enum class Verdict {
    kTooFew,
    kAwaitLeases,  // a node that is silent may yet be a member
    kLastCall,     // enough; others may come until it is over
    kComplete,     // nobody is waited for
  };
  struct View {
    int eligible = 0;
    /// A node's lease will soon decide whether it can be a member.
    bool awaits_leases = false;
    /// There has been no world yet.
    bool is_first = true;
  };

  /// `spec` must outlive it.
  explicit Rendezvous(const JobSpec& spec) : spec_(spec) {}

  /// The first wait for nodes, or that after a world; it begins behind `pause`.
  void Begin(Duration pause, MonoTime now);
  /// Which of the nodes is waited for.
  Verdict Consider(const View& view, MonoTime now);
  /// A world is formed.
  void End();
  /// The coordinator itself has not run for so long.
  void PutOff(Duration delay);

  bool is_pausing() const { return pause_until_ != MonoTime::max(); }
  /// How long the whole pause is; zero: there is none.
  Duration pause() const { return is_pausing() ? pause_ : Duration{}; }
  /// True once, when the pause is over.
  bool EndPauseIfDue(MonoTime now) { return ClearIfDue(pause_until_, now); }
  /// True once, when the last call is over.
  bool EndLastCallIfDue(MonoTime now);
  MonoTime join_deadline() const { return join_deadline_; }
  /// The deadline has passed with enough nodes, which wait for nobody else any more. False if it
  /// had passed before.
  bool EndJoining() { return !std::exchange(is_joining_over_, true); }
  /// They wait for something else until then.
  void WaitOnUntil(MonoTime deadline) { join_deadline_ = deadline; }
  MonoTime NextWake() const { return std::min({join_deadline_, last_call_at_, pause_until_}); }

 private:
  static bool ClearIfDue(MonoTime& timer, MonoTime now) {
    const bool is_due = now >= timer;
    timer = is_due ? MonoTime::max() : timer;
    return is_due;
  }

  // Constant after construction.
  const JobSpec& spec_;

  // Timers; MonoTime::max() when not set.
  MonoTime pause_until_ = MonoTime::max();
  Duration pause_{};
  MonoTime join_deadline_ = MonoTime::max();
  MonoTime last_call_at_ = MonoTime::max();
  bool is_last_call_over_ = false;
  bool is_joining_over_ = false;
  /// There have been min_nodes nodes since the last world; who loses one of them waits anew.
  bool had_enough_ = false;
};

/// Nodes that are started together come one after the other, and cost one stop, not one each.
class Growth {
 public:
  /// `spec` must outlive it.
  explicit Growth(const JobSpec& spec) : spec_(spec) {}

  /// A node may join a world that runs: others that come soon are waited for, but not for ever.
  void Await(MonoTime now);
  void Cancel() { due_ = latest_ = MonoTime::max(); }
  MonoTime due() const { return due_; }

 private:
  // Constant after construction.
  const JobSpec& spec_;

  MonoTime due_ = MonoTime::max();
  /// The latest that it can become due.
  MonoTime latest_ = MonoTime::max();
};

}  // namespace fsdprun
