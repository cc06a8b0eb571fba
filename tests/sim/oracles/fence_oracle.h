#pragma once

// What two generations could both touch belongs to one of them only: a message about an older
// generation changes nothing, on either side, and every world has the store that was made for it.

#include <map>

#include "agent/node/cluster_types.h"
#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class FenceOracle : public Oracle {
 public:
  /// A report about generation `about` reached the coordinator while `current` was its newest
  /// world; `had_effect`: it was not dropped, or the job's phase changed with it.
  void ReportReceived(Generation about, Generation current, bool had_effect);
  /// An order about generation `about` reached a node that held `held`; `touched_processes`: the
  /// node started, signalled or killed something because of it.
  void OrderReceived(Generation about, Generation held, bool touched_processes);
  /// Group rank 0 serves a store for `g` at `port`; ports are not used twice.
  void StoreMade(Generation g, int port);
  /// A worker of `g` is started and told of the store at `port`.
  void StoreUsed(Generation g, int port);

 private:
  std::map<int, Generation> owner_of_port_;
};

}  // namespace fsdprun::sim
