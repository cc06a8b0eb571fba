#pragma once

#include <deque>
#include <utility>

#include "base/effects.h"
#include "base/mono_time.h"

namespace fsdprun {

/// Feeds a state machine and has its effects carried out: the one pump of coordinator, agent and
/// simulator. `Machine` has the types Event and Effects, and Step(event, now, effects), a pure
/// function of its state. Thread: that of its owner.
//
// Note [Order of effects]
// Of each step, in this order: the record is kept, the wake-up is set, messages are sent, actions
// are executed, news is told. So nothing that follows from a decision can be seen before what a
// successor must know of it is safe. To carry out an effect may feed an event at once: the event
// waits until all effects of the step have been carried out.
template <class Machine>
class MachineDriver {
 public:
  using Event = typename Machine::Event;
  using Effects = typename Machine::Effects;

  /// Does what the machine decides, and decides nothing.
  class Executor {
   public:
    virtual ~Executor() = default;
    virtual MonoTime Now() = 0;
    virtual void Persist(const typename Effects::Record& record) = 0;
    /// Replaces the earlier wake-up.
    virtual void WakeAt(MonoTime at) = 0;
    /// May move from what it is given, and so may Execute().
    virtual void Send(typename Effects::Message& message) = 0;
    virtual void Execute(typename Effects::Action& action) = 0;
    virtual void Hear(const typename Effects::News& news) = 0;
    /// The machine is about to take this event.
    virtual void OnEvent(const Event& /*event*/) {}
    /// All its effects have been carried out.
    virtual void OnStepped(const Event& /*event*/, const Effects& /*effects*/) {}
  };

  /// Both must outlive it.
  MachineDriver(Machine& machine, Executor& executor) : machine_(machine), executor_(executor) {}

  void Feed(Event event) {
    waiting_.push_back(std::move(event));
    if (std::exchange(is_feeding_, true)) {
      return;
    }
    while (!waiting_.empty() && !is_stopped_) {
      const Event next = std::move(waiting_.front());
      waiting_.pop_front();
      Step(next);
    }
    is_feeding_ = false;
  }

  /// The effects of the present step are carried out; no other event is taken.
  void Stop() { is_stopped_ = true; }

 private:
  void Step(const Event& event) {
    executor_.OnEvent(event);
    machine_.Step(event, executor_.Now(), effects_);
    if (effects_.persist.has_value()) {
      executor_.Persist(*effects_.persist);
    }
    executor_.WakeAt(effects_.wake_at);
    for (auto& message : effects_.messages) {
      executor_.Send(message);
    }
    for (auto& action : effects_.actions) {
      executor_.Execute(action);
    }
    for (const auto& news : effects_.news) {
      executor_.Hear(news);
    }
    executor_.OnStepped(event, effects_);
  }

  Machine& machine_;
  Executor& executor_;
  std::deque<Event> waiting_;
  /// Used again by each step.
  Effects effects_;
  bool is_feeding_ = false;
  bool is_stopped_ = false;
};

}  // namespace fsdprun
