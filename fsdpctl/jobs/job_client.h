#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "agent/rpc/tls.h"
#include "base/mutex.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun {

/// Where a job is asked.
struct JobAddress {
  /// As gRPC takes it: `unix:/run/.../12.sock` or `host:port`.
  std::string target;
  std::string run_id;
  /// Empty: none is asked for.
  std::string token;
  /// Null: nothing is encrypted.
  std::shared_ptr<const Tls> tls;
  /// The name that the coordinator's certificate must have.
  std::string tls_name;
};

/// Ends a call of AskJob() from another thread.
class CallStop {
 public:
  /// What is being asked, or will be, ends with CANCELLED soon.
  void Stop();
  bool is_stopped() const;

  /// For AskJob(): `cancel` is called by Stop(), until it is replaced; null: there is no call.
  void SetCancel(std::function<void()> cancel);

 private:
  mutable Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> cancel_ ABSL_GUARDED_BY(mu_);
};

/// Asks a running job, and calls `on_answer` for each answer until the job has said all. Blocks,
/// for `limit` at most until it is connected (10 s without one), and for `limit` after that.
/// Errors: the job's own, UNAVAILABLE with where it was looked for, DEADLINE_EXCEEDED, and
/// CANCELLED by `stop`, which may be null.
absl::Status AskJob(const JobAddress& address, const v1::ControlQuestion& question,
                    const std::function<void(const v1::ControlAnswer&)>& on_answer,
                    std::optional<std::chrono::milliseconds> limit = std::nullopt,
                    CallStop* stop = nullptr);

}  // namespace fsdprun
