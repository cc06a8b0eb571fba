#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/mutex.h"
#include "fsdpctl/jobs/job_client.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun {

/// Asks a question again and again, on a thread of its own, as each call ends. A call does not read
/// its next answer before the loop has dealt with the last one: who is slow is told less, and
/// nothing piles up. Thread: the loop's, but for `Ask`.
class JobFeed {
 public:
  /// Blocks, as AskJob() does. Called on the feed's thread.
  using Ask = std::function<absl::Status(
      const std::function<void(const v1::ControlAnswer&)>& on_answer, CallStop* stop)>;
  struct Callbacks {
    /// A call begins: which one.
    std::function<Ask()> on_begin;
    std::function<void(const v1::ControlAnswer&)> on_answer;
    /// Returns whether another one is to begin, a little later.
    std::function<bool(const absl::Status&)> on_ended;
  };

  /// Between the end of a call and the next one.
  static constexpr Duration kPause = std::chrono::seconds(1);

  JobFeed(EventLoop& loop, Callbacks callbacks);
  /// Ends the call that is under way, and waits for that. No callback comes any more.
  ~JobFeed();
  JobFeed(const JobFeed&) = delete;
  JobFeed& operator=(const JobFeed&) = delete;

  /// Ends the call that is under way; the next one begins as if it had ended by itself.
  void Again();

 private:
  /// Of one call: how its thread and the loop take turns.
  struct Call {
    CallStop stop;
    Mutex mu;
    CondVar changed;
    bool is_answer_pending ABSL_GUARDED_BY(mu) = false;
    bool is_stopped ABSL_GUARDED_BY(mu) = false;
  };

  void Begin();
  /// On its thread.
  void Run(const std::shared_ptr<Call>& call, const Ask& ask);
  /// On its thread. Returns once it is dealt with, or the call is stopped.
  void Hand(const std::shared_ptr<Call>& call, const v1::ControlAnswer& answer);
  void Ended(const absl::Status& status);
  void PostIfLive(std::function<void()> what);

  EventLoop& loop_;
  const Callbacks callbacks_;
  std::shared_ptr<Call> call_;
  std::thread thread_;
  EventLoop::TimerId timer_ = 0;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
