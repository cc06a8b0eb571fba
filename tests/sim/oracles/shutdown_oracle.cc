#include "tests/sim/oracles/shutdown_oracle.h"

#include <algorithm>
#include <string>

namespace fsdprun::sim {

void ShutdownOracle::CoordinatorDied(Nanos at) { died_at_ = at; }

void ShutdownOracle::ProcessEnded(Nanos at, int node) { CheckInTime(at, node, "a worker"); }

void ShutdownOracle::AgentExited(Nanos at, int node, int exit_code) {
  CheckInTime(at, node, "the agent");
  if (at >= died_at_ && exit_code == 0 && !decided_) {
    Complain("the agent of node " + std::to_string(node) +
             " exits with 0 although the job was lost with its coordinator");
  }
}

void ShutdownOracle::CheckInTime(Nanos at, int node, const char* what) {
  if (died_at_ == kForever) {
    return;
  }
  CountQuestion();
  const Nanos from = std::max(died_at_, hearing_.ReachableFrom(node));
  if (at > from + bound_) {
    Complain(std::string(what) + " of node " + std::to_string(node) +
             " outlived the coordinator by " + std::to_string((at - from) / kMilli) + " ms");
  }
}

}  // namespace fsdprun::sim
