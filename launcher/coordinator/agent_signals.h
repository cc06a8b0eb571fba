#pragma once

// Whether a signal that some agents have got was meant for the whole job.
//
// Note [A signal to an agent]
// A scheduler that ends a job signals all of its agents, this process, or both. A node that is shut
// down, or taken away, signals what runs there, and the others may go on without it. Notices
// (SIGUSR1, SIGUSR2) are schedulers' alone. Any other signal is taken for the node's own until all
// other nodes of the allocation that are connected get one, too, or this process does: several
// nodes may be taken away at once. Meanwhile the agent leaves as any other: no time is lost if all
// are meant, because the others are being stopped for the next world. A node that falls silent
// meanwhile may have got the signal as well: if it is given up, the others decide. An agent that
// comes after its node's signal has not got it. Whoever can ask the scheduler learns of the doubt
// by doubts().

#include <cstdint>
#include <set>
#include <string>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "launcher/coordinator/node_table.h"

namespace fsdprun {

/// Knows which nodes of an allocation have got a signal. See Note [A signal to an agent].
class AgentSignals {
 public:
  /// `spec` must outlive it.
  explicit AgentSignals(const JobSpec& spec) : spec_(spec) {}

  /// The agent of `node` has got `signal`; it is one of `nodes`. Before the first world nodes may
  /// still be on their way. True if the signal is for the whole job.
  bool Heard(const job::Node& node, int signal, const NodeTable& nodes, bool has_formed,
             MonoTime now);
  /// An agent that comes after its node's signal has not got it.
  void ForgetNode(const std::string& name) { signalled_.erase(name); }
  /// `lost` is gone, and was the last that could have told: all others of the allocation have got
  /// last_signal().
  bool IsForAllWithout(const job::Node& lost, const NodeTable& nodes, bool has_formed) const;
  int last_signal() const { return last_signal_; }
  /// How often a signal may have been for its node alone.
  uint64_t doubts() const { return doubts_; }

 private:
  bool IsNobodyLeftToTell(const NodeTable& nodes, bool has_formed) const;
  bool MayStillTell(const std::string& name) const;

  // Constant after construction.
  const JobSpec& spec_;

  /// Nodes of the allocation whose agents, but not all, got a signal; when the latest did, and
  /// which.
  std::set<std::string> signalled_;
  MonoTime last_at_{};
  int last_signal_ = 0;
  uint64_t doubts_ = 0;
};

}  // namespace fsdprun
