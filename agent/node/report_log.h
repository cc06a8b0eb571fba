#pragma once

// What a node has reported about the generation that it holds.

#include <vector>

#include "agent/node/node_record.h"
#include "base/mono_time.h"
#include "proto/cluster/messages.h"

namespace fsdprun {

/// A failure of a node, and when it happened there.
struct OwnFailure {
  Failure failure;
  MonoTime at;
};

/// Kept for repeating on a new stream, see Note [Lost messages].
class ReportLog {
 public:
  void Clear() { reports_.clear(); }
  /// The message as it is to be sent now.
  AgentMessage Add(AgentMessage message, MonoTime happened_at, MonoTime now);
  /// All of them in order, as they are to be sent now.
  std::vector<AgentMessage> Repeat(MonoTime now) const;
  /// Those that cannot be made again of what the keeper knows.
  std::vector<NodeRecord::Report> Unrepeatable() const;
  /// The failures among them, of the node `node` with `assignment`.
  std::vector<OwnFailure> Failures(const NodeInfo& node, const RankAssignment& assignment) const;

 private:
  using Report = NodeRecord::Report;

  static AgentMessage Aged(const Report& report, MonoTime now);

  std::vector<Report> reports_;
};

}  // namespace fsdprun
