#pragma once

// Who is left out has earned it, and costs nobody a world. Its questions are nodes that are told
// that they are left out, and stops of worlds while there are such nodes.
//
// Note [Who may be left out]
// A node may be told so if, within the window and the time that it takes to notice a fault, as many
// faults hit it as the rule asks for, or one fewer: once, a victim on it may have been named, see
// Note [When a victim may be named]. What only happened to others is not held against it. No world
// is stopped so that a node can join that is left out, and none is ordered while one still is whose
// longest time is over. That worlds are large enough, and have it
// where they must, is for RecoveryOracle to say.

#include <map>
#include <string>

#include "tests/sim/oracles/fault_ledger.h"

namespace fsdprun::sim {

class QuarantineOracle : public Oracle {
 public:
  /// `after`, `window`: see JobSpec; 0: nobody is left out. `ledger` outlives the oracle.
  QuarantineOracle(const FaultLedger& ledger, int after, Nanos window)
      : ledger_(ledger), after_(after), window_(window) {}

  /// An agent on `node` is admitted, or is again; if it is left out, it is told so next.
  void Admitted(int node);
  /// An agent on `node` is told whether its node is left out.
  void LeftOut(Nanos at, int node, bool is_left_out);
  /// What was said to agents before it counts. Only the first call for a generation does.
  void WorldOrdered(Nanos at, Generation g);
  /// Only the first call for a generation counts.
  void StopOrdered(Generation g, const std::string& why);

 private:
  const FaultLedger& ledger_;
  const int after_;
  const Nanos window_;
  struct Told {
    /// What the node's agents are called.
    std::string name;
    Nanos at = 0;
  };
  /// By node.
  std::map<int, Told> left_out_;
  /// Those that were when they were admitted again.
  std::map<int, Told> were_left_out_;
  Generation ordered_;
  Generation stopped_;
};

}  // namespace fsdprun::sim
