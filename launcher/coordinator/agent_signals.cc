#include "launcher/coordinator/agent_signals.h"

#include <csignal>
#include <utility>

namespace fsdprun {

bool AgentSignals::Heard(const job::Node& node, int signal, const NodeTable& nodes, bool has_formed,
                         MonoTime now) {
  if (spec_.signalled_together.count(node.info.name) == 0) {
    return false;
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    return true;
  }
  if (now - std::exchange(last_at_, now) > spec_.signal_spread) {
    signalled_.clear();
  }
  signalled_.insert(node.info.name);
  last_signal_ = signal;
  const bool is_for_all = IsNobodyLeftToTell(nodes, has_formed);
  doubts_ += is_for_all ? 0 : 1;
  return is_for_all;
}

/// No node of the allocation has a connection and no signal, and none may be on its way.
bool AgentSignals::IsNobodyLeftToTell(const NodeTable& nodes, bool has_formed) const {
  if (!has_formed && signalled_.size() < spec_.signalled_together.size()) {
    return false;  // The others may still be on their way.
  }
  for (const job::Node& other : nodes) {
    if (other.connected && !other.leaving && MayStillTell(other.info.name)) {
      return false;
    }
  }
  return true;
}

/// It is of the allocation, and has not had the signal.
bool AgentSignals::MayStillTell(const std::string& name) const {
  return signalled_.count(name) == 0 && spec_.signalled_together.count(name) > 0;
}

bool AgentSignals::IsForAllWithout(const job::Node& lost, const NodeTable& nodes,
                                   bool has_formed) const {
  const MonoTime since = lost.connected ? lost.last_heard : lost.stream_lost_at;
  return !signalled_.empty() && since <= last_at_ + spec_.signal_spread &&
         MayStillTell(lost.info.name) && IsNobodyLeftToTell(nodes, has_formed);
}

}  // namespace fsdprun
