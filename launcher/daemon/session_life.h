#pragma once

#include <algorithm>
#include <utility>

#include "base/mono_time.h"

namespace fsdprun {

/// When a daemon ends a session, and when it forgets one. Its launcher follows it; a launcher that
/// is lost may come again in time. Pure: time comes in as an argument.
class SessionLife {
 public:
  struct Graces {
    /// How long it runs, or is remembered, without its launcher.
    Duration lost;
    /// Of its workers.
    Duration stop;
  };
  /// Beyond the grace of its workers, until a session that is to end is killed.
  static constexpr Duration kKillMargin = std::chrono::seconds(10);

  /// Of a detached one that has ended: for who attaches to hear of it.
  static constexpr Duration kKeepEnded = std::chrono::hours(24);

  enum class Order { kNone, kTerminate, kKill, kForget };

  SessionLife(const Graces& graces, MonoTime now)
      : graces_(graces), give_up_at_(now + graces.lost) {}

  /// From now on it needs no launcher, and its end is kept. Idempotent.
  void Detach() {
    if (!std::exchange(is_detached_, true)) {
      give_up_at_ = MonoTime::max();
    }
  }
  void Followed() {
    is_followed_ = true;
    give_up_at_ = MonoTime::max();
  }
  void Lost(MonoTime now) {
    if (!std::exchange(is_followed_, false)) {
      return;
    }
    if (!is_detached_) {
      give_up_at_ = now + graces_.lost;
    } else if (has_ended_) {
      give_up_at_ = now + kKeepEnded;
    }
  }
  /// The launcher wants no more of it.
  void Released(MonoTime now) { give_up_at_ = now; }
  /// It is to end whoever follows it.
  void Stop(MonoTime now) { stop_at_ = std::min(stop_at_, now); }
  /// The same at once, whatever its workers still do.
  void Kill(MonoTime now) { kill_at_ = std::min(kill_at_, now); }
  void Ended(MonoTime now) {
    has_ended_ = true;
    if (is_detached_ && !is_followed_ && give_up_at_ == MonoTime::max()) {
      give_up_at_ = now + kKeepEnded;
    }
  }
  bool has_ended() const { return has_ended_; }
  /// It was told to end: its process is not started again.
  bool is_ending() const { return is_terminated_ || is_killed_; }
  bool is_detached() const { return is_detached_; }

  /// What is to be done now; to be asked again at due().
  Order Next(MonoTime now) {
    if (has_ended_) {
      return now >= give_up_at_ ? Order::kForget : Order::kNone;
    }
    if (now >= kill_at_) {
      kill_at_ = MonoTime::max();
      is_killed_ = true;
      return Order::kKill;
    }
    if (!is_terminated_ && now >= std::min(stop_at_, give_up_at_)) {
      is_terminated_ = true;
      kill_at_ = std::min(kill_at_, now + graces_.stop + kKillMargin);
      return Order::kTerminate;
    }
    return Order::kNone;
  }
  MonoTime due() const {
    if (has_ended_) {
      return give_up_at_;
    }
    const MonoTime terminate_at =
        is_terminated_ || is_killed_ ? MonoTime::max() : std::min(stop_at_, give_up_at_);
    return std::min(terminate_at, kill_at_);
  }

 private:
  const Graces graces_;
  /// max: it is followed.
  MonoTime give_up_at_;
  MonoTime stop_at_ = MonoTime::max();
  MonoTime kill_at_ = MonoTime::max();
  bool is_detached_ = false;
  bool is_followed_ = false;
  bool is_terminated_ = false;
  bool is_killed_ = false;
  bool has_ended_ = false;
};

}  // namespace fsdprun
