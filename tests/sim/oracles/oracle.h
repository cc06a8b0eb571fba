#pragma once

// What all oracles have in common. An oracle observes a simulated run from outside: it is fed what
// was done to the cluster, the messages and the processes, and compares them. Of the machines it
// sees nothing but the outcome that the job declares, which is what it judges. None of them knows
// the simulator, so that a test can feed it a made-up history.

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
  /// How often the run put a question of which not every answer would have been right.
  int questions() const { return questions_; }

 protected:
  void CountQuestion() { ++questions_; }
  void Complain(std::string what) {
    if (complaint_.empty()) {
      complaint_ = std::move(what);
    }
  }

 private:
  std::string complaint_;
  int questions_ = 0;
};

}  // namespace fsdprun::sim
