#pragma once

#include <cstdint>

#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// For how long the present world has been seen to run.
class WorldClock {
 public:
  void See(const v1::JobStatus& status, MonoTime now);
  /// 0: it does not run.
  Duration RunningFor(MonoTime now) const;

 private:
  uint64_t generation_ = 0;
  /// Of the process that tells of it: another one has yet to hear of the workers.
  int64_t coordinator_ = 0;
  bool runs_ = false;
  MonoTime since_{};
};

}  // namespace fsdprun::top
