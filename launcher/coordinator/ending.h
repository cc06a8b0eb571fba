#pragma once

// How a job ends, and what its nodes are told then.

#include <map>
#include <optional>
#include <string>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/node_table.h"
#include "launcher/coordinator/recovery_policy.h"
#include "launcher/coordinator/world.h"

namespace fsdprun {

namespace job {

// The outcomes; `world` is the present or the last one.

JobOutcome Succeeded(const World& world);
/// `when` ends the sentence that says by what.
JobOutcome StoppedBySignal(int signal, const std::string& when, bool grace_cut_short);
/// The failure that ended the world ends the job; `why` says why nothing follows.
JobOutcome FailedWith(const World& world, const std::string& why);
/// Something else than a failure of the world has ended the job: `what` is a sentence.
JobOutcome EndedBy(CauseKind cause, const std::string& what, const World& world);
JobOutcome NeverStarted(const Failure& cause);

}  // namespace job

/// The outcome once it is decided, and what the nodes were told of it.
class Ending {
 public:
  /// `spec` must outlive it.
  explicit Ending(const JobSpec& spec) : spec_(spec) {}

  /// Once. With what every outcome says of the job.
  void Decide(JobOutcome outcome, const World& world, const job::RecoveryBudgets& budgets,
              MonoTime now);
  /// Instead, as a coordinator before this one has decided it; nodes that have not heard of it are
  /// waited for until `deadline`.
  void Restore(const JobOutcome& outcome, MonoTime deadline);
  const std::optional<JobOutcome>& outcome() const { return outcome_; }
  /// When nodes that have not left are waited for no longer; MonoTime::max() if nobody is.
  MonoTime deadline() const { return deadline_; }
  void PutOffDeadline(Duration delay);
  /// A released node has left, or its stream has broken or is there again: those that are left are
  /// waited for as long again, within bounds. Thousands of nodes, or those of a loaded machine,
  /// leave one after the other; and one whose stream broke may not have heard that it may leave.
  void HeardOfNode(MonoTime now);
  /// True once, when it has passed.
  bool EndWaitIfDue(MonoTime now);
  /// All have left.
  void Finish();
  bool is_finished() const { return is_finished_; }

  // --- Once it is decided

  /// What the node is told; it is remembered.
  ReleaseAgent ReleaseOf(const job::Node& node);
  /// For who asks while the host of a finished job lingers. A node that has been released, but has
  /// not heard of it, hears the same again; one that the job had lost hears how the job ended.
  ReleaseAgent ReleaseOfLate(Incarnation incarnation, Generation held) const;

 private:
  int CodeFor(const job::Node& node) const;
  ReleaseAgent Release(int code) const;

  // Constant after construction.
  const JobSpec& spec_;

  std::optional<JobOutcome> outcome_;
  std::map<Incarnation, int> released_codes_;
  MonoTime deadline_ = MonoTime::max();
  /// The latest that it can become.
  MonoTime latest_ = MonoTime::max();
  bool is_finished_ = false;
};

}  // namespace fsdprun
