// Whatever happens in whatever order: each nanosecond is in one bucket, and what is settled stays
// so.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "launcher/ledger/time_ledger.h"

namespace fsdprun {
namespace {

class RandomLedger {
 public:
  explicit RandomLedger(uint32_t seed) : random_(seed), ledger_(Make()) {}

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_ += Duration(
          static_cast<int64_t>(Below(5) == 0 ? Below(900'000'000'000) : Below(3'000'000'000)));
      Happen();
      Check();
    }
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  TimeLedger Make() {
    return Below(2) == 0 ? TimeLedger(now_) : TimeLedger(static_cast<job::Phase>(Below(6)), now_);
  }

  void Happen() {
    switch (Below(12)) {
      case 0:
        return ledger_.On(job::WorldFormed{}, now_);
      case 1:
        return ledger_.On(job::WorldCommitted{}, now_);
      case 2: {
        job::FailureReported failure;
        failure.failure.kind = Below(2) == 0 ? CauseKind::kWorkerHung : CauseKind::kWorkerFailed;
        failure.age = Duration(static_cast<int64_t>(Below(20'000'000'000)));
        return ledger_.On(failure, now_);
      }
      case 3:
        return ledger_.On(
            job::WorldStopping{Generation(1), static_cast<job::StopKind>(Below(3)), ""}, now_);
      case 4:
        return ledger_.On(job::WorldStopped{}, now_);
      case 5:
        return ledger_.NodesAreBack(now_);
      case 6:
        return Below(50) == 0 ? ledger_.Decide(now_) : ledger_.Advance(now_);
      case 7:
        return Below(100) == 0 ? ledger_.On(job::JobFinished{}, now_) : ledger_.Advance(now_);
      default:
        step_ = Below(10) == 0 ? Below(step_ + 1) : step_ + 1 + Below(5);
        return ledger_.Progress(static_cast<int64_t>(step_), now_);
    }
  }

  void Check() {
    // Also at a time at which nothing happens.
    for (const Duration later :
         {Duration{}, Duration(static_cast<int64_t>(Below(2'000'000'000)))}) {
      const TimeLedger::Times all = ledger_.All(now_ + later);
      ASSERT_EQ(std::accumulate(all.begin(), all.end(), Duration{}), ledger_.Wall(now_ + later));
      for (size_t i = 0; i < kTimeBuckets; ++i) {
        ASSERT_GE(ledger_.settled()[i], last_[i]) << "what was settled was taken back";
        ASSERT_GE(all[i], ledger_.settled()[i]);
      }
    }
    last_ = ledger_.settled();
    if (const auto goodput = ledger_.Goodput(std::chrono::hours(1), now_)) {
      ASSERT_GE(*goodput, 0);
      ASSERT_LE(*goodput, 1);
    }
  }

  std::mt19937_64 random_;
  MonoTime now_{std::chrono::hours(1000)};
  uint64_t step_ = 0;
  TimeLedger ledger_;
  TimeLedger::Times last_{};
};

TEST(RandomLedgerTest, EveryNanosecondIsInOneBucket) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomLedger(seed).Run(300);
    if (HasFatalFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace fsdprun
