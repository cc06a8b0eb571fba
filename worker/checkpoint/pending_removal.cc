#include "worker/checkpoint/pending_removal.h"

#include <cerrno>
#include <string>

#include "worker/checkpoint/exchange.h"

namespace fsdprun::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// How long the other ranks wait in a collective, and rank 0 without a look whether it must give
/// up.
constexpr std::chrono::milliseconds kTurn = std::chrono::milliseconds(250);

constexpr char kRemoved[] = "removed";
constexpr char kUnderWay[] = "under way";
constexpr char kInVain[] = "in vain";

bool MayHelp(const CheckpointError& failure) {
  const int number = failure.error_number();
  return number == ENOSPC || number == EDQUOT || number == kBeingRemoved;
}

}  // namespace

bool PendingRemoval::HasEnded(std::chrono::milliseconds wait) const {
  return !ended_.valid() || ended_.wait_for(wait) == std::future_status::ready;
}

bool PendingRemoval::IsUnderWay() const { return !HasEnded(std::chrono::milliseconds(0)); }

void PendingRemoval::RequireName(int64_t step) const {
  if (step == step_ && IsUnderWay()) {
    throw CheckpointError(
        "what the checkpoint of that step has replaced is still being removed; is the file "
        "system hung?",
        kBeingRemoved);
  }
}

bool PendingRemoval::HasMadeWay(const Group& over, const CheckpointError& failure,
                                bool was_under_way) const {
  if (!MayHelp(failure)) {
    return false;
  }
  const Clock::time_point deadline = Clock::now() + wait_max_;
  const auto turn = [&]() -> std::string {
    if (!was_under_way) {
      return kInVain;
    }
    if (HasEnded(kTurn)) {
      return kRemoved;
    }
    if (must_give_up_ && must_give_up_()) {
      throw CheckpointError("there is no time to wait until old checkpoints are removed: " +
                                std::string(failure.what()),
                            ECANCELED);
    }
    return Clock::now() < deadline ? kUnderWay : kInVain;
  };
  std::string said;
  do {
    said = AttemptOnRank0(over, turn);
  } while (said == kUnderWay);
  return said == kRemoved;
}

}  // namespace fsdprun::checkpoint
