#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/rpc/coordinator_link.h"
#include "agent/rpc/tls.h"
#include "base/event_loop.h"

namespace fsdprun {

/// CoordinatorLink over one gRPC bidirectional stream. gRPC is initialised by the first Open().
/// That a peer is silent is noticed by NodeMachine, see Note [Is anybody there], and not here.
//
// Note [Several addresses]
// A coordinator may have several addresses, of which not all can be reached from here. They are
// tried one after the other, each a moment after the one before or as soon as that has failed; the
// first that answers as a coordinator does is the stream, and is tried first the next time.
//
// Note [The old stream stands]
// Who dials again because the coordinator has been silent leaves the old stream open until the
// coordinator has said something on the new one. To the coordinator, the end of a stream is what
// becomes of an agent that dies: on a machine that has too much to do, more time may pass between
// the end of the one and the beginning of the other than it waits for an agent that is gone.
class GrpcLink : public CoordinatorLink {
 public:
  struct Options {
    /// Numeric `address:port` each, best first; not empty.
    std::vector<std::string> targets;
    std::string job_id;
    /// Read before every attempt: the coordinator on this machine may not have written the token
    /// yet. UNAVAILABLE means "not yet".
    std::function<absl::StatusOr<std::string>()> token;
    /// From Open() to the coordinator's first answer, over all targets; times the patience, unless
    /// it is an operator's.
    Duration open_timeout = std::chrono::seconds(5);
    bool has_fixed_open_timeout = false;
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls{};
    /// Whose certificate the coordinator must have; empty: the address's that is tried.
    std::string tls_name{};
  };

  GrpcLink(EventLoop& loop, Options options);
  ~GrpcLink() override;

  void SetCallbacks(Callbacks callbacks) override;
  void Open(int patience) override;
  void Send(const FromAgent& message) override;
  void SendAside(const v1::FromNodeAside& aside) override;
  size_t unwritten() const override;
  void Close() override;
  /// The coordinator is at these addresses now: attempts lead there from now on. One that is under
  /// way, and a stream that is up, are replaced by an attempt there, without a callback.
  void Redirect(std::vector<std::string> targets);

 private:
  class Stream;
  /// A stream that has not been answered.
  struct Candidate {
    uint64_t id = 0;
    /// Of `order_`.
    size_t position = 0;
    std::shared_ptr<Stream> stream;
  };

  void StartNext();
  void OnOpenTimeout();
  void FailCandidate(size_t index, const absl::Status& status);
  void FailAttempt();
  void Tell(const LinkLoss& loss);
  void DropAttempt();
  void DropStreams();
  void Retire(std::shared_ptr<Stream> stream);
  void RetireStanding();
  void ReportUp(uint64_t id);
  void ReportMessage(uint64_t id, const absl::StatusOr<ToAgent>& message);
  void ReportAside(uint64_t id, const v1::ToNodeAside& aside);
  void ReportLoss(uint64_t id, const absl::Status& status);
  absl::Status Explain(const absl::Status& status, const Stream& stream) const;
  /// The token has changed since the last attempt: a new coordinator has replaced the one that
  /// wrote the old token.
  bool TokenHasChanged() const;
  /// Runs `closure` on the loop thread unless the link has been destroyed by then. From any thread.
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction, but for the targets.
  EventLoop& loop_;
  Options options_;
  Callbacks callbacks_;

  // Owned by the loop thread.
  /// Increased by every attempt, so that what was posted for an older one is dropped.
  uint64_t attempt_ = 0;
  uint64_t last_id_ = 0;
  EventLoop::TimerId open_timer_ = 0;
  EventLoop::TimerId next_timer_ = 0;
  Duration open_limit_{};
  std::string used_token_;
  /// Who the agent is, as it has said.
  Incarnation agent_;
  /// A coordinator has answered once: what is wrong with a certificate may pass.
  bool was_up_ = false;
  /// The attempt: indices of targets in the order in which they are tried, how many have been
  /// begun, who has not answered, and why the others failed.
  std::vector<size_t> order_;
  size_t begun_ = 0;
  std::vector<Candidate> candidates_;
  std::vector<std::optional<LinkLoss>> losses_;
  /// The stream that is up, if any.
  std::shared_ptr<Stream> stream_;
  uint64_t stream_id_ = 0;
  /// See Note [The old stream stands].
  std::shared_ptr<Stream> standing_;
  /// Cancelled streams whose end has not been seen; the loop must outlive them.
  std::vector<std::shared_ptr<Stream>> retired_;
  /// Set to false by the destructor; checked by posted closures.
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

/// What became of an attempt, of the losses of its addresses in the order in which they were tried:
/// a coordinator's answer, else the first, but not that of a server which is no coordinator.
/// `losses` is not empty. Pure.
LinkLoss MostTelling(const std::vector<LinkLoss>& losses);

}  // namespace fsdprun
