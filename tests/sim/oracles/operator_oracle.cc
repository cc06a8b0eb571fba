#include "tests/sim/oracles/operator_oracle.h"

#include <string>

namespace fsdprun::sim {

void OperatorOracle::WorldOrdered(Incarnation agent, Generation g) {
  if (g > ordered_ && !drained_.empty()) {
    ordered_ = g;
    CountQuestion();
  }
  if (drained_.count(agent) != 0) {
    Complain("an agent whose node was drained is in generation " + std::to_string(g.value()));
  }
}

void OperatorOracle::Released(Incarnation agent, const ReleaseAgent& release) {
  const bool is_drain = release.job_goes_on && release.exit_code == 0;
  if (is_drain && drained_.count(agent) == 0) {
    Complain("an agent is told to go as if its node were drained: " + release.reason);
  }
  // It may still be of no use, because its workers do not end.
  if (!release.job_goes_on && drained_.count(agent) != 0) {
    Complain("an agent whose node was drained is told to go for another reason: " + release.reason);
  }
}

void OperatorOracle::IsThere(Incarnation agent) {
  CountQuestion();
  if (drained_.count(agent) != 0) {
    Complain("an agent whose node was drained long ago is still there");
  }
}

}  // namespace fsdprun::sim
