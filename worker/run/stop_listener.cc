#include "worker/run/stop_listener.h"

#include <chrono>

#include "worker/run/stop_signal.h"

namespace fsdprun::worker {

using Clock = StopPlan::Clock;

bool StopListener::IsRequested() {
  if (const auto raised_at = StopSignal::RaisedAt()) {
    plan_.Request(*raised_at);
  }
  const auto record = channel_.PollStop();
  if (record && record->grace_ms > 0) {
    plan_.Request(Clock::now(), std::chrono::milliseconds(record->grace_ms));
  } else if (record) {
    plan_.Request(Clock::now());
  }
  return plan_.is_requested();
}

bool StopListener::MustAbandonStep(int64_t done, int64_t forwards, double seconds) {
  const double rest = seconds / static_cast<double>(done) * static_cast<double>(forwards - done);
  return IsRequested() &&
         !plan_.CanFinishStep(Clock::now(), std::chrono::duration_cast<Clock::duration>(
                                                std::chrono::duration<double>(rest)));
}

bool StopListener::MustGiveUpSave() { return IsRequested() && plan_.MustGiveUpSave(Clock::now()); }

}  // namespace fsdprun::worker
