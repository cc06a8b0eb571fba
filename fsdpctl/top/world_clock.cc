#include "fsdpctl/top/world_clock.h"

namespace fsdprun::top {

void WorldClock::See(const v1::JobStatus& status, MonoTime now) {
  const bool runs = status.phase() == "running";
  const bool is_same = runs == runs_ && status.generation() == generation_ &&
                       status.coordinator().pid() == coordinator_;
  if (!is_same) {
    since_ = now;
  }
  runs_ = runs;
  generation_ = status.generation();
  coordinator_ = status.coordinator().pid();
}

Duration WorldClock::RunningFor(MonoTime now) const { return runs_ ? now - since_ : Duration{}; }

}  // namespace fsdprun::top
