// A node that cannot run the job's program.

#include <algorithm>
#include <utility>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

/// A world that has run shows that the program is right, so a node that comes later and lacks it is
/// turned away. Before the first world the job ends: its command line needs a correction.
void JobMachine::OnCannotRun(const AgentJoined& joined, Out& out) {
  const NodeInfo& info = joined.node;
  const std::string what = "node " + info.name + " cannot run the program: " + joined.cannot_run;
  if (formations_ > 0) {
    out.effects.messages.push_back(
        ToAgent{info.incarnation, Generation{}, RejectAgent{joined.cannot_run, false}});
    return;
  }
  const Node& node = membership_.AdmitToLastWords(info, out.now);
  SendTo(node, Generation{}, AdmissionOf(spec_), out);
  if (!cannot_start_) {
    cannot_start_ = FailureOf(node, CauseKind::kCannotStart, what);
    cannot_start_at_ = out.now + spec_.cannot_start_notice;
    SetReason(what + "; telling the other nodes");
  }
}

void JobMachine::MaybeFinishCannotStart(Out& out) {
  const bool all_know = static_cast<int>(membership_.nodes().size()) >= spec_.max_nodes;
  if (!cannot_start_ || outcome() || (out.now < cannot_start_at_ && !all_know)) {
    return;
  }
  Finish(job::NeverStarted(*cannot_start_), out);
}

}  // namespace fsdprun
