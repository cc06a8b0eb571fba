#include "agent/node/contact.h"

#include <algorithm>
#include <chrono>

namespace fsdprun {
namespace {

constexpr Duration kAdmitTimeout = std::chrono::seconds(10);
constexpr Duration kFirstRetry = std::chrono::milliseconds(10);
constexpr Duration kRetryMax = std::chrono::milliseconds(100);
constexpr Duration kRetryMaxBeforeAdmission = std::chrono::seconds(1);
constexpr int kPatienceMax = 8;

std::string Seconds(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s"
                        : std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

}  // namespace

Contact::Contact(const NodeSpec& spec)
    : heartbeat_interval_(spec.heartbeat_interval),
      stream_silence_(spec.stream_silence),
      connect_timeout_(spec.connect_timeout),
      ended_grace_(spec.coordinator_ended_grace),
      endpoint_(spec.coordinator_endpoint),
      node_lease_(spec.node_lease),
      coordinator_grace_(spec.coordinator_grace),
      jitter_(spec.node.incarnation.value()) {}

void Contact::Resume(Duration node_lease, MonoTime now) {
  FollowLease(node_lease);
  was_ever_admitted_ = true;
  lost_at_ = now;
  deadline_ = DeadlineWithoutCoordinator();
}

void Contact::StreamUp(MonoTime now) {
  is_up_ = true;
  is_admitted_ = false;
  asked_at_ = MonoTime::max();
  if (was_ever_admitted_) {
    lost_at_ = std::min(lost_at_, now);  // A new stream tells of the loss, if nothing else did.
    refused_since_ = MonoTime::max();
    deadline_ = std::max(DeadlineWithoutCoordinator(), now + kAdmitTimeout);
  }
}

void Contact::Admitted(Duration node_lease, MonoTime now) {
  FollowLease(node_lease);
  is_admitted_ = true;
  was_ever_admitted_ = true;
  deadline_ = MonoTime::max();
  lost_at_ = MonoTime::max();
  refused_since_ = MonoTime::max();
  redial_delay_ = {};
  patience_ = 1;
  next_question_ = now;
  HeartbeatIsSent(now);
}

bool Contact::Asks(MonoTime now) {
  if (now < next_question_) {
    return false;
  }
  next_question_ = now + stream_silence_ / 3;
  asked_at_ = std::min(asked_at_, now);
  return true;
}

/// With the time between two questions as long as the transport's silence.
Duration Contact::LongestAnswer() const {
  return has_job_run_ ? stream_silence_ - stream_silence_ / 3 : coordinator_grace_;
}

MonoTime Contact::silent_at() const {
  return asked_at_ == MonoTime::max() ? asked_at_ : asked_at_ + LongestAnswer();
}

std::string Contact::Silence() const { return "no answer for " + Seconds(LongestAnswer()); }

/// Heartbeats that are rarer than the coordinator expects cost a node its place, and an agent that
/// gives up before it may be replaced costs its workers.
void Contact::FollowLease(Duration node_lease) {
  if (node_lease == node_lease_ || node_lease <= Duration{}) {
    return;
  }
  const Clocks clocks =
      ClocksFor(std::chrono::duration_cast<std::chrono::milliseconds>(node_lease));
  node_lease_ = node_lease;
  heartbeat_interval_ = clocks.heartbeat_interval;
  coordinator_grace_ = clocks.coordinator_grace;
  stream_silence_ = clocks.stream_silence;
}

Contact::Broken Contact::Break(const std::string& why) {
  const Broken broken{is_up_, is_admitted_};
  is_up_ = false;
  is_admitted_ = false;
  next_heartbeat_ = MonoTime::max();
  asked_at_ = MonoTime::max();
  last_error_ = why;
  return broken;
}

Duration Contact::Redial(Broken broken, bool nothing_listens, MonoTime now) {
  if (was_ever_admitted_) {
    lost_at_ = broken.was_admitted ? now : lost_at_;
    refused_since_ = nothing_listens ? std::min(refused_since_, now) : MonoTime::max();
    deadline_ = DeadlineWithoutCoordinator();
  }
  patience_ = has_job_run_ || nothing_listens ? 1 : std::min(patience_ * 2, kPatienceMax);
  redial_delay_ = broken.was_up ? Duration{}
                                : std::clamp(redial_delay_ * 2, kFirstRetry,
                                             has_job_run_ ? kRetryMax : kRetryMaxBeforeAdmission);
  return Jittered(redial_delay_);
}

/// Between half of it and all, by numbers that begin elsewhere on each agent.
Duration Contact::Jittered(Duration delay) {
  return delay / 2 + delay / 2 * static_cast<int64_t>(jitter_.Next() % 1024) / 1023;
}

/// A coordinator that is silent may only be stopped, and its nodes must not suffer for that; one
/// whose address refuses connections has ended, and with it the job unless it can be taken over.
MonoTime Contact::DeadlineWithoutCoordinator() const {
  const MonoTime silent = lost_at_ + coordinator_grace_;
  return refused_since_ == MonoTime::max() || expects_successor_
             ? silent
             : std::min(silent, refused_since_ + ended_grace_);
}

std::string Contact::GiveUp() {
  deadline_ = MonoTime::max();
  if (!was_ever_admitted_) {
    return "could not join through the coordinator at " + endpoint_ + " within " +
           Seconds(connect_timeout_) + " (" + last_error_ +
           "); check --rdzv-endpoint and that the launcher on that host is running";
  }
  const bool has_ended = refused_since_ != MonoTime::max() && !expects_successor_;
  return "lost the coordinator at " + endpoint_ + " (" + last_error_ + ") and " +
         (has_ended ? "nothing listens there any more: its launcher has ended"
                    : "could not reach it again within " + Seconds(coordinator_grace_)) +
         "; the workers of this node were ended. Look at the launcher on that host.";
}

void Contact::ForgiveStall(Duration late) {
  for (MonoTime* time : {&deadline_, &lost_at_, &refused_since_, &asked_at_}) {
    *time = *time == MonoTime::max() ? *time : *time + late;
  }
}

}  // namespace fsdprun
