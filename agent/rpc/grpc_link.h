#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/rpc/coordinator_link.h"
#include "base/event_loop.h"

namespace fsdprun {

/// CoordinatorLink over one gRPC bidirectional stream. The network library starts with the first
/// Open().
class GrpcLink : public CoordinatorLink {
 public:
  struct Options {
    /// Numeric `address:port`.
    std::string target;
    std::string job_id;
    /// Read before every attempt: the coordinator on this machine may not have written the token
    /// yet. UNAVAILABLE means "not yet".
    std::function<absl::StatusOr<std::string>()> token;
    /// From Open() to the coordinator's first answer.
    Duration open_timeout = std::chrono::seconds(5);
  };

  GrpcLink(EventLoop& loop, Options options);
  ~GrpcLink() override;

  void SetCallbacks(Callbacks callbacks) override;
  void Open() override;
  void Send(const FromAgent& message) override;
  void Close() override;

 private:
  class Stream;

  void DropStream();
  void ScheduleLoss(uint64_t id, absl::Status status);
  void ReportUp(uint64_t id);
  void ReportMessage(uint64_t id, const absl::StatusOr<ToAgent>& message);
  void ReportLoss(uint64_t id, const absl::Status& status);
  /// The token in force is not the one of the last attempt: that attempt came between two
  /// coordinators.
  bool TokenHasChanged() const;
  /// Runs `closure` on the loop thread unless the link has been destroyed by then. From any thread.
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  Callbacks callbacks_;

  // Owned by the loop thread.
  /// Of the current stream or attempt; what older ones report is dropped.
  uint64_t stream_id_ = 0;
  EventLoop::TimerId open_timer_ = 0;
  std::string used_token_;
  std::shared_ptr<Stream> stream_;
  /// Cancelled streams whose end has not been seen; the loop must outlive them.
  std::vector<std::shared_ptr<Stream>> retired_;
  /// Told false by the destructor; posted closures look at it.
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
