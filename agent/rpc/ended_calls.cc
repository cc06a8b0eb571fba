#include "agent/rpc/ended_calls.h"

#include <utility>
#include <vector>

#include "base/mutex.h"

namespace fsdprun {
namespace {

struct EndedCall {
  std::shared_ptr<void> call;
  std::function<bool()> is_done;
};

struct EndedCalls {
  Mutex mu;
  std::vector<EndedCall> all ABSL_GUARDED_BY(mu);
};

/// Never destroyed: gRPC's threads may go on as long as the process.
EndedCalls& TheEndedCalls() {
  static auto* const calls = new EndedCalls;
  return *calls;
}

}  // namespace

void KeepUntilDone(std::shared_ptr<void> call, std::function<bool()> is_done) {
  std::vector<EndedCall> done;  // Freed once the lock is.
  EndedCalls& calls = TheEndedCalls();
  MutexLock lock(calls.mu);
  std::vector<EndedCall> kept;
  for (EndedCall& ended : calls.all) {
    (ended.is_done() ? done : kept).push_back(std::move(ended));
  }
  kept.push_back({std::move(call), std::move(is_done)});
  calls.all = std::move(kept);
}

}  // namespace fsdprun
