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

/// CoordinatorLink over one gRPC bidirectional stream. gRPC is initialised by the first Open().
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
  /// The token has changed since the last attempt: a new coordinator has replaced the one that
  /// wrote the old token.
  bool TokenHasChanged() const;
  /// Runs `closure` on the loop thread unless the link has been destroyed by then. From any thread.
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  Callbacks callbacks_;

  // Owned by the loop thread.
  /// Id of the current stream or attempt; reports of older ones are dropped.
  uint64_t stream_id_ = 0;
  EventLoop::TimerId open_timer_ = 0;
  std::string used_token_;
  std::shared_ptr<Stream> stream_;
  /// Cancelled streams whose end has not been seen; the loop must outlive them.
  std::vector<std::shared_ptr<Stream>> retired_;
  /// Set to false by the destructor; checked by posted closures.
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
