#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>

#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

/// Of an error: what the save before has replaced is still being removed, under the name that this
/// one needs.
constexpr int kBeingRemoved = -4;

/// What the save before the present one has retired, which that one's thread may still be removing:
/// it takes room, and maybe a name, that the present one needs. A removal may take longer than the
/// save, and on a hung file system for ever, so it is waited for in short turns, after each of
/// which all ranks have heard of rank 0. Thread: one at a time.
class PendingRemoval {
 public:
  /// Of `step`; `ended`: on rank 0, is ready once all is removed. `must_give_up`: of SaverOptions.
  /// Who waits gives up after `wait_max`.
  PendingRemoval(std::shared_future<void> ended, int64_t step, std::function<bool()> must_give_up,
                 std::chrono::milliseconds wait_max = kWaitMax)
      : ended_(std::move(ended)),
        step_(step),
        must_give_up_(std::move(must_give_up)),
        wait_max_(wait_max) {}
  /// There is none.
  PendingRemoval() = default;

  /// Of rank 0.
  bool IsUnderWay() const;
  /// On rank 0. Errors: CheckpointError (kBeingRemoved) if a save of `step` has to wait for it.
  void RequireName(int64_t step) const;
  /// Whether another try may succeed after a save that has failed so: all is removed, and
  /// `was_under_way`, as rank 0 says, when that save began. Collective. Errors: CheckpointError
  /// (ECANCELED) if rank 0 must give up meanwhile; what `over` says.
  bool HasMadeWay(const Group& over, const CheckpointError& failure, bool was_under_way) const;

 private:
  static constexpr std::chrono::milliseconds kWaitMax = std::chrono::minutes(5);

  bool HasEnded(std::chrono::milliseconds wait) const;

  std::shared_future<void> ended_;
  int64_t step_ = 0;
  std::function<bool()> must_give_up_;
  std::chrono::milliseconds wait_max_ = kWaitMax;
};

}  // namespace fsdprun::checkpoint
