#include "worker/metrics/vitals.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

namespace fsdprun::worker {
namespace {

using contract::VitalsPage;
using contract::WorkerPhase;
using std::chrono::nanoseconds;

class VitalsTest : public ::testing::Test {
 protected:
  void Pass(int64_t ns) { now_ += nanoseconds(ns); }
  WorkerPhase phase() const { return static_cast<WorkerPhase>(page_->phase.load()); }
  static double Number(const VitalsPage::Word& word) {
    const uint64_t bits = word;
    double number = 0;
    std::memcpy(&number, &bits, sizeof(number));
    return number;
  }

  const std::unique_ptr<VitalsPage> page_ = std::make_unique<VitalsPage>();
  Vitals::Clock::time_point now_{nanoseconds(1000)};
  nanoseconds waited_{500};
  Vitals vitals_{page_.get(), [this] { return waited_; }, [this] { return now_; }};
};

TEST_F(VitalsTest, AStepIsToldWhenItBeginsAndItsTimesWhenItHasEnded) {
  vitals_.SetTotal(10);
  vitals_.BeginStep(7);
  EXPECT_EQ(page_->total, 10u);
  EXPECT_EQ(page_->step, 7u);
  EXPECT_EQ(page_->step_began_ns, 1000u);
  EXPECT_EQ(page_->step_ns, 0u);  // none has ended
  vitals_.Enter(WorkerPhase::kWaitingForData);
  Pass(3);
  vitals_.Enter(WorkerPhase::kForward);
  Pass(10);
  waited_ += nanoseconds(4);
  vitals_.Enter(WorkerPhase::kWaitingForData);
  Pass(2);
  vitals_.Enter(WorkerPhase::kBackward);
  Pass(20);
  EXPECT_EQ(phase(), WorkerPhase::kBackward);
  {
    const Vitals::Within saving(vitals_, WorkerPhase::kSaving);
    EXPECT_EQ(phase(), WorkerPhase::kSaving);
    Pass(100);
  }
  EXPECT_EQ(phase(), WorkerPhase::kBackward);
  Pass(1);
  vitals_.BeginStep(8);
  EXPECT_EQ(page_->step, 8u);
  EXPECT_EQ(page_->step_began_ns, 1136u);
  EXPECT_EQ(page_->step_ns, 136u);
  EXPECT_EQ(page_->collective_wait_ns, 4u);
  EXPECT_EQ(page_->data_wait_ns, 5u);
  EXPECT_EQ(page_->save_ns, 100u);
}

TEST_F(VitalsTest, TheLastStepEndsWithoutAnother) {
  vitals_.BeginStep(1);
  Pass(5);
  vitals_.EndSteps();
  EXPECT_EQ(page_->step_ns, 5u);
  Pass(5);
  vitals_.EndSteps();  // of none
  EXPECT_EQ(page_->step_ns, 5u);
  EXPECT_EQ(page_->step, 1u);
}

TEST_F(VitalsTest, PhasesWithinOneAnother) {
  vitals_.Enter(WorkerPhase::kStarting);
  {
    const Vitals::Within loading(vitals_, WorkerPhase::kLoading);
    EXPECT_EQ(phase(), WorkerPhase::kLoading);
  }
  EXPECT_EQ(phase(), WorkerPhase::kStarting);
}

TEST_F(VitalsTest, ResultsOfAStep) {
  vitals_.SetResults({.loss = 2.5,
                      .tokens_per_second = 1e6,
                      .tokens = 4096,
                      .device_bytes = 11,
                      .device_peak_bytes = 12});
  EXPECT_EQ(Number(page_->loss), 2.5);
  EXPECT_EQ(Number(page_->tokens_per_second), 1e6);
  EXPECT_EQ(page_->tokens, 4096u);
  EXPECT_EQ(page_->device_bytes, 11u);
  EXPECT_EQ(page_->device_peak_bytes, 12u);
}

TEST(VitalsWithoutPageTest, PhasesAreToldToTheObserverAllTheSame) {
  Vitals vitals(nullptr, [] { return nanoseconds(0); });
  std::vector<WorkerPhase> told;
  vitals.SetObserver([&](WorkerPhase phase) { told.push_back(phase); });
  vitals.Enter(WorkerPhase::kForward);
  { const Vitals::Within saving(vitals, WorkerPhase::kSaving); }
  EXPECT_EQ(told, (std::vector<WorkerPhase>{WorkerPhase::kForward, WorkerPhase::kSaving,
                                            WorkerPhase::kForward}));
}

TEST(VitalsWithoutPageTest, NothingIsAskedOrWritten) {
  Vitals vitals(
      nullptr,
      []() -> nanoseconds {
        ADD_FAILURE();
        return {};
      },
      []() -> Vitals::Clock::time_point {
        ADD_FAILURE();
        return {};
      });
  vitals.SetTotal(1);
  vitals.BeginStep(1);
  vitals.SetResults({});
  const Vitals::Within saving(vitals, WorkerPhase::kSaving);
  vitals.EndSteps();
}

}  // namespace
}  // namespace fsdprun::worker
