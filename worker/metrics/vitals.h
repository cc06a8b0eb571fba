#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "proto/worker_vitals.h"

namespace fsdprun::worker {

/// Tells the page of proto/worker_vitals.h what the training does; nothing if there is none. What
/// is in it of collectives is libfsdp's. Thread: one.
class Vitals {
 public:
  using Clock = std::chrono::steady_clock;
  /// Of what this process has waited in collectives so far.
  using WaitTime = std::function<std::chrono::nanoseconds()>;

  /// `page`: null: nobody reads. It outlives this object.
  Vitals(contract::VitalsPage* page, WaitTime collective_wait,
         std::function<Clock::time_point()> now = Clock::now);

  void SetTotal(int64_t total_steps);
  /// The step before, if there is one, has ended with all that followed it.
  void BeginStep(int64_t step);
  /// So has the last one.
  void EndSteps();

  /// What a step has given.
  struct Results {
    double loss = 0;
    double tokens_per_second = 0;
    int64_t tokens = 0;
    /// 0 without a device.
    int64_t device_bytes = 0;
    int64_t device_peak_bytes = 0;
  };
  void SetResults(const Results& results);

  /// Told of each phase that is entered, also where nobody reads the page.
  using Observer = std::function<void(contract::WorkerPhase)>;
  void SetObserver(Observer observer) { observer_ = std::move(observer); }

  /// Returns the phase that this one ends.
  contract::WorkerPhase Enter(contract::WorkerPhase phase);
  /// A phase within another, which goes on afterwards.
  class Within {
   public:
    Within(Vitals& vitals, contract::WorkerPhase phase)
        : vitals_(vitals), outer_(vitals.Enter(phase)) {}
    ~Within() { vitals_.Enter(outer_); }
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    Vitals& vitals_;
    const contract::WorkerPhase outer_;
  };

 private:
  contract::VitalsPage* const page_;
  const WaitTime collective_wait_;
  const std::function<Clock::time_point()> now_;
  Observer observer_;
  contract::WorkerPhase phase_ = contract::WorkerPhase::kOther;
  Clock::time_point phase_began_{};

  // Of the present step.
  bool is_in_step_ = false;
  Clock::time_point step_began_{};
  std::chrono::nanoseconds waited_before_{};
  std::chrono::nanoseconds waiting_for_data_{};
  std::chrono::nanoseconds saving_{};
};

}  // namespace fsdprun::worker
