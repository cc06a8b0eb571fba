#include "tests/sim/oracles/place_oracle.h"

namespace fsdprun::sim {

void PlaceOracle::WorldOrdered(Generation g) {
  if (g > last_) {
    last_ = g;
    is_stopped_ = false;
  }
}

void PlaceOracle::StopOrdered(Nanos at, Generation g) {
  if (g == last_ && !is_stopped_) {
    is_stopped_ = true;
    stop_began_at_ = at;
  }
}

void PlaceOracle::WorkersOrdered(Nanos at, Generation g) {
  if (sure_for_ == 0 || g <= started_) {
    return;
  }
  started_ = g;
  CountQuestion();
  const std::string workers =
      "workers of generation " + std::to_string(g.value()) + " are started ";
  if (taken_at_ <= at) {
    Complain(workers + std::to_string((at - taken_at_) / kMilli) +
             " ms after another launcher became the host");
  } else if (at > looked_at_ + sure_for_) {
    Complain(workers + std::to_string((at - looked_at_) / kMilli) +
             " ms after somebody looked whether the place was its host's");
  } else if (looked_at_ < stop_began_at_) {
    Complain(workers +
             "although nobody has looked at the place of its host since the last world "
             "began to stop");
  }
}

}  // namespace fsdprun::sim
