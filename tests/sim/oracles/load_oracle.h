#pragma once

// A loaded machine makes a job slow and costs no node its place: until a world is committed, nobody
// is given up for silence, and where nothing but load disturbs the job, for no other reason either.
// Its questions are nodes that join before.

#include <string>

#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class LoadOracle : public Oracle {
 public:
  void NodeJoined();
  /// The coordinator has given a node up, for the reason in `what`. `is_only_late`: nothing has
  /// happened to it but that it is late, or the coordinator.
  void NodeLost(const std::string& name, const std::string& what, bool is_only_late);
  void WorldCommitted() { is_committed_ = true; }

 private:
  bool is_committed_ = false;
};

}  // namespace fsdprun::sim
