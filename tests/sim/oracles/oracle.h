#pragma once

// What all oracles have in common. An oracle observes a simulated run from outside: it is fed what
// was done to the cluster and what the cluster did, never what the machines think of it, and it
// compares the two. None of them knows the simulator, so that a test can feed it a made-up history.

#include <limits>
#include <string>
#include <utility>

#include "tests/sim/virtual_time.h"

namespace fsdprun::sim {

inline constexpr Nanos kForever = std::numeric_limits<Nanos>::max() / 4;

class Oracle {
 public:
  /// Empty, or the first thing that was found wrong.
  const std::string& complaint() const { return complaint_; }

 protected:
  void Complain(std::string what) {
    if (complaint_.empty()) {
      complaint_ = std::move(what);
    }
  }

 private:
  std::string complaint_;
};

}  // namespace fsdprun::sim
