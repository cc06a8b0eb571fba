#pragma once

#include <algorithm>

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

  enum class Order { kNone, kTerminate, kKill, kForget };

  SessionLife(const Graces& graces, MonoTime now)
      : graces_(graces), give_up_at_(now + graces.lost) {}

  void Followed() { give_up_at_ = MonoTime::max(); }
  void Lost(MonoTime now) {
    if (give_up_at_ == MonoTime::max()) {
      give_up_at_ = now + graces_.lost;
    }
  }
  /// The launcher wants no more of it.
  void Released(MonoTime now) { give_up_at_ = now; }
  /// It is to end whoever follows it.
  void Stop(MonoTime now) { stop_at_ = std::min(stop_at_, now); }
  /// The same at once, whatever its workers still do.
  void Kill(MonoTime now) { kill_at_ = std::min(kill_at_, now); }
  void Ended() { has_ended_ = true; }
  bool has_ended() const { return has_ended_; }

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
  bool is_terminated_ = false;
  bool is_killed_ = false;
  bool has_ended_ = false;
};

}  // namespace fsdprun
