#pragma once

// An agent's contact with its coordinator: when to dial again, when to beat, when to give up.

#include <optional>
#include <string>

#include "agent/node/node_spec.h"
#include "base/mono_time.h"

namespace fsdprun {

/// What follows from giving up is for the caller to decide.
class Contact {
 public:
  /// What a stream was that broke.
  struct Broken {
    bool was_up = false;
    bool was_admitted = false;
  };

  explicit Contact(const NodeSpec& spec);

  /// The first attempt begins.
  void Begin(MonoTime now) { deadline_ = now + connect_timeout_; }
  void StreamUp(MonoTime now);
  void Admitted(Duration node_lease, MonoTime now);
  /// Whether another coordinator may take its place; see AdmitAgent.
  void ExpectSuccessor(bool is_expected) { expects_successor_ = is_expected; }
  /// The stream broke, or an attempt to open one failed.
  Broken Break(const std::string& why);
  /// After that: how long to wait before the next attempt. `nothing_listens`: the coordinator's
  /// host refused the connection.
  Duration Redial(Broken broken, bool nothing_listens, MonoTime now);
  /// The deadline has passed, and is none any more. Why the coordinator is given up, for an
  /// operator.
  std::string GiveUp();
  /// This agent itself has not run for so long: answers may lie unread.
  void ForgiveStall(Duration late);

  bool is_up() const { return is_up_; }
  bool was_ever_admitted() const { return was_ever_admitted_; }
  /// When the coordinator is given up; MonoTime::max() while there is no need to.
  MonoTime deadline() const { return deadline_; }
  bool IsAwaited() const { return deadline_ != MonoTime::max(); }
  MonoTime next_heartbeat() const { return next_heartbeat_; }
  void HeartbeatIsSent(MonoTime now) { next_heartbeat_ = now + heartbeat_interval_; }

 private:
  void FollowLease(Duration node_lease);
  MonoTime DeadlineWithoutCoordinator() const;

  // Read at every step, and therefore first. MonoTime::max() when not set.
  bool is_up_ = false;
  bool was_ever_admitted_ = false;
  bool is_admitted_ = false;
  bool expects_successor_ = false;
  MonoTime next_heartbeat_ = MonoTime::max();
  MonoTime deadline_ = MonoTime::max();
  Duration heartbeat_interval_;

  // Constant after construction.
  const Duration connect_timeout_;
  const Duration ended_grace_;
  const std::string endpoint_;

  Duration node_lease_;
  Duration coordinator_grace_;
  /// When the stream of an admitted agent broke, and since when attempts have been refused.
  MonoTime lost_at_ = MonoTime::max();
  MonoTime refused_since_ = MonoTime::max();
  Duration redial_delay_{};
  std::string last_error_;
};

}  // namespace fsdprun
