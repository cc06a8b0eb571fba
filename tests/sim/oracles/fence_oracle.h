#pragma once

// What two generations could both touch belongs to one of them only: a message about an older
// generation changes nothing, on either side, and every world has the store that was made for it.
// Its questions are stale messages: every worker asks for its store, which would hide that there
// were none.

#include <map>

#include "proto/cluster/types.h"
#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class FenceOracle : public Oracle {
 public:
  /// A report about generation `about` reached the coordinator while `current` was its newest
  /// world; `had_effect`: it was answered with orders, or the job's end was decided. What it
  /// changes silently (a rank that counts as failed or finished) shows in how the world ends, which
  /// is for OutcomeOracle.
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
