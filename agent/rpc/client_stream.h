#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "agent/rpc/bidi_stream.h"
#include "base/mono_time.h"
#include "base/mutex.h"

namespace fsdprun {

/// The client's end of a bidirectional stream. Its owner keeps it until it IsDone(), which comes
/// soon after Cancel(), or gives it to KeepUntilDone(): the last channel must not end on a thread
/// of gRPC's, which would wait for itself.
template <class Incoming, class Outgoing>
class ClientStream : public BidiStream<grpc::ClientBidiReactor<Outgoing, Incoming>, Outgoing> {
 public:
  /// Writes what is queued, and tells the server that no more comes; waits until the server has
  /// ended the call, but not after `deadline`. Not on a thread of gRPC's.
  void FinishWriting(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    if (!this->WaitWritten(deadline)) {
      return;
    }
    {
      MutexLock lock(mu_);
      if (this->is_closed()) {
        return;
      }
      this->Close();
      this->StartWritesDone();
    }
    this->WaitDone(deadline);
  }

  /// Ends the call at once.
  void Cancel() { context_.TryCancel(); }

 protected:
  using BidiStream<grpc::ClientBidiReactor<Outgoing, Incoming>, Outgoing>::mu_;

  /// Begins the call, after that of the stub's async() with context() and this.
  void Start(std::shared_ptr<ClientStream> self) {
    self_ = std::move(self);
    this->StartRead(&incoming_);
    // Send() starts writes outside of reactions; the hold delays OnDone until no more writes can
    // follow.
    this->AddHold();
    this->StartCall();
  }
  grpc::ClientContext* context() { return &context_; }

  /// On a thread of gRPC's, one at a time.
  virtual void OnMessage(const Incoming& message) = 0;
  /// The last: the call has ended. On a thread of gRPC's.
  virtual void OnEnd(const absl::Status& status) = 0;

 private:
  void OnReadDone(bool ok) final {
    if (ok) {
      OnMessage(incoming_);
      this->StartRead(&incoming_);
      return;
    }
    {
      MutexLock lock(mu_);
      this->Close();
    }
    this->RemoveHold();
  }

  void OnDone(const grpc::Status& status) final {
    OnEnd(FromGrpc(status));
    MutexLock lock(mu_);
    self_.reset();
    this->SetDone();
  }

  grpc::ClientContext context_;
  std::shared_ptr<ClientStream> self_;
  Incoming incoming_;
};

}  // namespace fsdprun
