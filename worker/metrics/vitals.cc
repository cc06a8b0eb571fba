#include "worker/metrics/vitals.h"

#include <cstring>
#include <utility>

namespace fsdprun::worker {
namespace {

using Nanoseconds = std::chrono::nanoseconds;
using Word = contract::VitalsPage::Word;

void Set(Word& word, int64_t value) {
  word.store(static_cast<uint64_t>(value), std::memory_order_relaxed);
}

void Set(Word& word, Nanoseconds value) { Set(word, int64_t{value.count()}); }

void Set(Word& word, double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  word.store(bits, std::memory_order_relaxed);
}

}  // namespace

Vitals::Vitals(contract::VitalsPage* page, WaitTime collective_wait,
               std::function<Clock::time_point()> now)
    : page_(page), collective_wait_(std::move(collective_wait)), now_(std::move(now)) {}

void Vitals::SetTotal(int64_t total_steps) {
  if (page_ != nullptr) {
    Set(page_->total, total_steps);
  }
}

void Vitals::BeginStep(int64_t step) {
  EndSteps();
  if (page_ == nullptr) {
    return;
  }
  is_in_step_ = true;
  step_began_ = now_();
  waited_before_ = collective_wait_();
  waiting_for_data_ = {};
  saving_ = {};
  Set(page_->step, step);
  Set(page_->step_began_ns, Nanoseconds(step_began_.time_since_epoch()));
}

void Vitals::EndSteps() {
  if (!std::exchange(is_in_step_, false)) {
    return;
  }
  Set(page_->step_ns, now_() - step_began_);
  Set(page_->collective_wait_ns, collective_wait_() - waited_before_);
  Set(page_->data_wait_ns, waiting_for_data_);
  Set(page_->save_ns, saving_);
}

void Vitals::SetResults(const Results& results) {
  if (page_ == nullptr) {
    return;
  }
  Set(page_->loss, results.loss);
  Set(page_->tokens_per_second, results.tokens_per_second);
  Set(page_->tokens, results.tokens);
  Set(page_->device_bytes, results.device_bytes);
  Set(page_->device_peak_bytes, results.device_peak_bytes);
}

contract::WorkerPhase Vitals::Enter(contract::WorkerPhase phase) {
  if (observer_) {
    observer_(phase);
  }
  if (page_ == nullptr) {
    return std::exchange(phase_, phase);
  }
  const Clock::time_point now = now_();
  if (phase_ == contract::WorkerPhase::kWaitingForData) {
    waiting_for_data_ += now - phase_began_;
  } else if (phase_ == contract::WorkerPhase::kSaving) {
    saving_ += now - phase_began_;
  }
  phase_began_ = now;
  page_->phase.store(static_cast<uint64_t>(phase), std::memory_order_relaxed);
  return std::exchange(phase_, phase);
}

}  // namespace fsdprun::worker
