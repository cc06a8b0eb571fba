#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "fsdprun/v1/aside.pb.h"
#include "proto/cluster/messages.h"

namespace fsdprun {

/// Why a stream broke or could not be opened.
struct LinkLoss {
  /// Permanent codes: UNAUTHENTICATED, NOT_FOUND (another job's coordinator), INVALID_ARGUMENT,
  /// UNIMPLEMENTED (a gRPC server that is not a coordinator), PERMISSION_DENIED (TLS: see
  /// ExplainTls()). All others may be retried.
  absl::Status status;
  /// The coordinator's host refused the connection: no process listens at the address.
  bool nothing_listens = false;
};

/// An agent's connection with the coordinator, in the same process or over the network.
/// Thread: loop thread only, callbacks too; a callback may call any method.
class CoordinatorLink {
 public:
  struct Callbacks {
    std::function<void()> on_up;
    std::function<void(const ToAgent&)> on_message;
    std::function<void(const LinkLoss&)> on_lost;
    /// What the coordinator asks beside its machine; may be null.
    std::function<void(const v1::ToNodeAside&)> on_aside{};
  };

  virtual ~CoordinatorLink() = default;
  /// Must be called once, before Open().
  virtual void SetCallbacks(Callbacks callbacks) = 0;
  /// Opens a stream, replacing an older one without a callback; answered by on_up or on_lost, never
  /// from within Open(). It may take `patience` times as long as usual.
  virtual void Open(int patience) = 0;
  /// Queues a message; dropped while no stream is up.
  virtual void Send(const FromAgent& message) = 0;
  /// The same of what is said beside the machines. After the first Send(): it tells who the agent
  /// is.
  virtual void SendAside(const v1::FromNodeAside& aside) = 0;
  /// How many messages have been queued and not handed to the network: who has more to say than
  /// that takes says it later.
  virtual size_t unwritten() const = 0;
  /// Ends the stream after writing what is queued, with a timeout of about a second. No callback
  /// follows.
  virtual void Close() = 0;
};

}  // namespace fsdprun
