#include "worker/run/rollback.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/run/failure.h"
#include "worker/run/stop_signal.h"

namespace fsdprun::worker {
namespace {

// How long a stop waits for a checkpoint to be loaded; see StopSignal.
constexpr auto kLoadTimeout = std::chrono::minutes(10);

std::string TextOf(const DataRange& data) {
  const auto text = [](const DataCursor& cursor) {
    return "epoch " + std::to_string(cursor.epoch) + ", window " + std::to_string(cursor.offset);
  };
  return "from " + text(data.begin) + ", to before " + text(data.end);
}

}  // namespace

bool Rollback::GoBack(const BadStep& bad, bool is_stopping) {
  checkpoints_.FinishBeforeError();
  if (is_stopping) {
    FaultNotice once;
    context_.report.Warn(once, bad.step,
                         bad.what + "; as the run is to stop, the next start goes back");
    checkpoints_.ForgoLast("step " + std::to_string(bad.step) + " was bad");
    return true;
  }
  StopSignal::SetTimeout(kLoadTimeout);
  LeaveOut(bad);
  steps_.GoOnFromState();
  context_.report.GoBackTo(state_.step, state_.tokens);
  FaultNotice each;
  context_.report.Warn(each, state_.step,
                       bad.what + "; training went back to the checkpoint of step " +
                           std::to_string(state_.step) + ", and goes on without the data of step " +
                           std::to_string(bad.step) + " (" + TextOf(bad.data) + ")");
  return checkpoints_.Save();
}

void Rollback::LeaveOut(const BadStep& bad) {
  std::vector<DataRange> known = state_.bad_data;
  known.push_back(bad.data);
  const std::optional<Resumer::Place> place =
      resumer_.RollBack(checkpoints_.saved_steps(), bad.step - 1);
  if (!place) {
    throw DivergedError(bad.what +
                        ", and there is no checkpoint to go back to; set checkpoint.every_steps");
  }
  for (const DataRange& range : known) {
    if (std::find(state_.bad_data.begin(), state_.bad_data.end(), range) == state_.bad_data.end()) {
      state_.bad_data.push_back(range);
    }
  }
  checkpoints_.GoOnFrom(place->saved_step);
}

}  // namespace fsdprun::worker
