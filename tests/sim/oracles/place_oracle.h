#pragma once

// A host starts workers only while its place is its own, and knows it. It knows it for a while
// after a look at the place began, or after it took the place, at the time 0; and if a world has
// ended since, only if it looked after that began to stop. Its questions are worlds.

#include "proto/cluster/types.h"
#include "tests/sim/oracles/oracle.h"

namespace fsdprun::sim {

class PlaceOracle : public Oracle {
 public:
  /// `sure_for`: see JobSpec::place_sure_for; 0: nobody can take the place.
  explicit PlaceOracle(Nanos sure_for) : sure_for_(sure_for) {}

  /// The coordinator is told that the place was its own when a look began at `at`.
  void LookedUp(Nanos at) { looked_at_ = at; }
  /// Another launcher has become the host.
  void Taken(Nanos at) { taken_at_ = at; }
  void WorldOrdered(Generation g);
  /// Only the first call for a generation counts, here and below.
  void StopOrdered(Nanos at, Generation g);
  /// The workers of `g` are to be started.
  void WorkersOrdered(Nanos at, Generation g);

 private:
  const Nanos sure_for_;
  Nanos looked_at_ = 0;
  Nanos taken_at_ = kForever;
  Generation last_;
  bool is_stopped_ = false;
  Nanos stop_began_at_ = 0;
  Generation started_;
};

}  // namespace fsdprun::sim
