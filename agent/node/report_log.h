#pragma once

// What a node has reported about the generation that it holds.

#include <cstddef>
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
  void Clear() {
    reports_.clear();
    unrepeatable_ = 0;
  }
  /// The message as it is to be sent now.
  AgentMessage Add(AgentMessage message, MonoTime happened_at, MonoTime now);
  /// All of them in order, as they are to be sent now.
  std::vector<AgentMessage> Repeat(MonoTime now) const;
  /// The keeper knows nothing any more of what was reported until now.
  void KeeperForgets() { unrepeatable_ = reports_.size(); }
  /// Those that cannot be made again of what the keeper knows.
  std::vector<NodeRecord::Report> Unrepeatable() const;
  size_t CountUnrepeatable() const;
  /// The failures among them, of the node `node` with `assignment`.
  std::vector<OwnFailure> Failures(const NodeInfo& node, const RankAssignment& assignment) const;

 private:
  using Report = NodeRecord::Report;

  bool IsRepeatable(size_t index) const;
  static AgentMessage Aged(const Report& report, MonoTime now);

  std::vector<Report> reports_;
  /// So many of the first are of an earlier keeper, or agent.
  size_t unrepeatable_ = 0;
};

}  // namespace fsdprun
