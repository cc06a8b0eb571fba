#include "tests/sim/oracles/load_oracle.h"

namespace fsdprun::sim {

void LoadOracle::NodeJoined() {
  if (!is_committed_) {
    CountQuestion();
  }
}

void LoadOracle::NodeLost(const std::string& name, const std::string& what, bool is_only_late) {
  const bool is_for_silence = what.find("was silent") == 0;
  if (!is_committed_ && (is_for_silence || is_only_late)) {
    Complain("node " + name + " is given up before any world is committed: it " + what);
  }
}

}  // namespace fsdprun::sim
