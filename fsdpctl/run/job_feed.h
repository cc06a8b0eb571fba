#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "fsdpctl/jobs/job_client.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun {

/// Asks a question again and again, on a thread of its own, as each call ends. Thread: the loop's,
/// but for `ask`.
class JobFeed {
 public:
  /// Blocks, as AskJob() does.
  using Ask = std::function<absl::Status(
      const std::function<void(const v1::ControlAnswer&)>& on_answer, CallStop* stop)>;
  struct Callbacks {
    std::function<void()> on_asked;
    std::function<void(const v1::ControlAnswer&)> on_answer;
    /// Returns whether another one is to begin, a little later.
    std::function<bool(const absl::Status&)> on_ended;
  };

  /// Between the end of a call and the next one.
  static constexpr Duration kPause = std::chrono::seconds(1);

  JobFeed(EventLoop& loop, Ask ask, Callbacks callbacks);
  /// Ends the call that is under way, and waits for that. No callback comes any more.
  ~JobFeed();
  JobFeed(const JobFeed&) = delete;
  JobFeed& operator=(const JobFeed&) = delete;

  /// Ends the call that is under way; the next one begins as if it had ended by itself.
  void Again();

 private:
  void Begin();
  /// On its thread.
  void Call(const std::shared_ptr<CallStop>& stop);
  void Ended(const absl::Status& status);
  void PostIfLive(std::function<void()> what);

  EventLoop& loop_;
  const Ask ask_;
  const Callbacks callbacks_;
  std::shared_ptr<CallStop> stop_;
  std::thread thread_;
  EventLoop::TimerId timer_ = 0;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
