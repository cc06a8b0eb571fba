#include "tests/sim/oracles/fence_oracle.h"

namespace fsdprun::sim {

void FenceOracle::ReportReceived(Generation about, Generation current, bool had_effect) {
  if (about == current) {
    return;
  }
  CountQuestion();
  if (had_effect) {
    Complain("a report about generation " + std::to_string(about.value()) +
             " changed a job whose generation is " + std::to_string(current.value()));
  }
}

void FenceOracle::OrderReceived(Generation about, Generation held, bool touched_processes) {
  if (about == Generation{} || about >= held) {
    return;
  }
  CountQuestion();
  if (touched_processes) {
    Complain("an order about generation " + std::to_string(about.value()) +
             " touched the processes of generation " + std::to_string(held.value()));
  }
}

void FenceOracle::StoreMade(Generation g, int port) { owner_of_port_[port] = g; }

void FenceOracle::StoreUsed(Generation g, int port) {
  const auto owner = owner_of_port_.find(port);
  if (owner == owner_of_port_.end() || owner->second != g) {
    Complain("workers of generation " + std::to_string(g.value()) + " were given a store of " +
             (owner == owner_of_port_.end()
                  ? std::string("nobody")
                  : "generation " + std::to_string(owner->second.value())));
  }
}

}  // namespace fsdprun::sim
