#include "worker/run/stop_listener.h"

#include <chrono>

#include "worker/run/stop_signal.h"

namespace fsdprun::worker {

using Clock = StopPlan::Clock;

bool StopListener::IsRequested() {
  const auto raised_at = StopSignal::RaisedAt();
  const auto record = channel_.PollStop();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (raised_at) {
    plan_.Request(*raised_at);
  }
  if (record && record->grace_ms > 0) {
    plan_.Request(Clock::now(), std::chrono::milliseconds(record->grace_ms));
  } else if (record) {
    plan_.Request(Clock::now());
  }
  return plan_.is_requested();
}

bool StopListener::MustAbandonStep(int64_t done, int64_t forwards, double seconds) {
  const double rest = seconds / static_cast<double>(done) * static_cast<double>(forwards - done);
  const auto rest_time =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(rest));
  if (!IsRequested()) {
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return !plan_.CanFinishStep(Clock::now(), rest_time);
}

bool StopListener::MustGiveUpSave() {
  if (!IsRequested()) {
    return false;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.MustGiveUpSave(Clock::now());
}

void StopListener::NoteStep(StopPlan::Duration time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_.NoteStep(time);
}

void StopListener::NoteSave(StopPlan::Duration time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_.NoteSave(time);
}

void StopListener::SetSaving(bool is_saving) {
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_.SetSaving(is_saving);
}

std::chrono::milliseconds StopListener::step_timeout() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plan_.step_timeout();
}

}  // namespace fsdprun::worker
