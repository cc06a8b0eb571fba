#pragma once

// An agent's contact with its coordinator: when to dial again, when to beat and to ask whether the
// beats are heard, when to give up.

#include <cstdint>
#include <optional>
#include <string>

#include "agent/node/node_spec.h"
#include "base/mono_time.h"
#include "base/split_mix64.h"

namespace fsdprun {

/// What follows from giving up is for the caller to decide.
//
// Note [Is anybody there]
// Some beats ask for an answer. One that does not come within the transport's silence means that
// the coordinator, or the way to it, is gone, and the agent dials again. That is decided here and
// not by the transport, because only here it is known when this agent was late itself, and whether
// there is any hurry: until workers have been started, a coordinator that is slow is one to whom
// everybody comes at once, and who dials it again only makes it slower. Then an answer may take as
// long as an agent waits for a silent coordinator, and attempts to open a stream last longer each
// time. Pauses between attempts differ from agent to agent, so that those who were lost together do
// not come back together.
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
  /// In place of that, in an agent that goes on for one that was admitted: its stream has just
  /// broken. `node_lease`: the job's; zero: not told.
  void Resume(Duration node_lease, MonoTime now);
  void StreamUp(MonoTime now);
  void Admitted(Duration node_lease, MonoTime now);
  /// The coordinator has said something.
  void Heard() { asked_at_ = MonoTime::max(); }
  /// Workers are started: from here on the job suffers from what is slow.
  void JobRuns() { has_job_run_ = true; }
  /// Whether another coordinator may take its place; see AdmitAgent.
  void ExpectSuccessor(bool is_expected) { expects_successor_ = is_expected; }
  /// The coordinator, or another in its place, is there from now on.
  void Moved(const std::string& endpoint) { endpoint_ = endpoint; }
  /// The stream broke, or an attempt to open one failed.
  Broken Break(const std::string& why);
  /// After that: how long to wait before the next attempt. `nothing_listens`: the coordinator's
  /// host refused the connection.
  Duration Redial(Broken broken, bool nothing_listens, MonoTime now);
  /// By how much longer than usual the next attempt may take.
  int patience() const { return patience_; }
  /// The deadline has passed, and is none any more. Why the coordinator is given up, for an
  /// operator.
  std::string GiveUp();
  /// This agent itself has not run for so long: answers may lie unread.
  void ForgiveStall(Duration late);

  bool expects_successor() const { return expects_successor_; }
  Duration node_lease() const { return node_lease_; }
  bool is_up() const { return is_up_; }
  bool was_ever_admitted() const { return was_ever_admitted_; }
  /// The coordinator is lost, and another may take its place.
  bool AwaitsSuccessor() const { return was_ever_admitted_ && IsAwaited() && expects_successor_; }
  const std::string& endpoint() const { return endpoint_; }
  /// When the coordinator is given up; MonoTime::max() while there is no need to.
  MonoTime deadline() const { return deadline_; }
  bool IsAwaited() const { return deadline_ != MonoTime::max(); }
  MonoTime next_heartbeat() const { return next_heartbeat_; }
  void HeartbeatIsSent(MonoTime now) { next_heartbeat_ = now + heartbeat_interval_; }
  /// A beat is about to be sent. True if it is to ask for an answer.
  bool Asks(MonoTime now);
  /// When the coordinator counts as silent, unless it says something; MonoTime::max(): it was not
  /// asked.
  MonoTime silent_at() const;
  /// Why the stream is given up then.
  std::string Silence() const;

 private:
  void FollowLease(Duration node_lease);
  MonoTime DeadlineWithoutCoordinator() const;
  Duration LongestAnswer() const;
  Duration Jittered(Duration delay);

  // Read at every step, and therefore first. MonoTime::max() when not set.
  bool is_up_ = false;
  bool was_ever_admitted_ = false;
  bool is_admitted_ = false;
  bool expects_successor_ = false;
  bool has_job_run_ = false;
  MonoTime next_heartbeat_ = MonoTime::max();
  MonoTime deadline_ = MonoTime::max();
  /// When the oldest question was asked that is open, and when the next is to be.
  MonoTime asked_at_ = MonoTime::max();
  MonoTime next_question_{};
  Duration heartbeat_interval_;
  Duration stream_silence_;

  // Constant after construction.
  const Duration connect_timeout_;
  const Duration ended_grace_;

  std::string endpoint_;
  Duration node_lease_;
  Duration coordinator_grace_;
  /// When the stream of an admitted agent broke, and since when attempts have been refused.
  MonoTime lost_at_ = MonoTime::max();
  MonoTime refused_since_ = MonoTime::max();
  Duration redial_delay_{};
  int patience_ = 1;
  SplitMix64 jitter_;
  std::string last_error_;
};

}  // namespace fsdprun
