#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "agent/rpc/bidi_stream.h"
#include "base/check.h"
#include "base/mono_time.h"
#include "base/mutex.h"

namespace fsdprun {

/// The server's end of a bidirectional stream. Lives until gRPC is done with it and its owner has
/// dropped it.
//
// Note [Who sends more than is read]
// A message that has been read waits for the loop. At most a stated number of one stream's may
// wait; no more is read until one of them has been dealt with, and the rest is the sender's to
// keep, by the flow control of HTTP/2. So a sender that does not stop costs a bounded amount of
// memory.
template <class Incoming, class Outgoing>
class ServerStream : public BidiStream<grpc::ServerBidiReactor<Incoming, Outgoing>, Outgoing> {
 public:
  /// `unread_max`: see Note [Who sends more than is read].
  explicit ServerStream(int unread_max) : unread_max_(unread_max) {}

  /// Begins to read. In the method of the service that returns it.
  void Start(std::shared_ptr<ServerStream> self) {
    self_ = std::move(self);
    this->StartSendInitialMetadata();
    this->StartRead(&incoming_);
  }

  /// In place of Start(): ends the call with `status`; nothing is read from it.
  void StartRefused(std::shared_ptr<ServerStream> self, const absl::Status& status) {
    self_ = std::move(self);
    End(status);
  }

  /// One message more has been dealt with.
  void ReadOn() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    --unread_;
    if (is_paused_ && !is_finishing_) {
      is_paused_ = false;
      this->StartRead(&incoming_);
    }
  }

  /// Ends the call with `status`. What has been sent and not written is dropped: WaitWritten().
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!std::exchange(is_finishing_, true)) {
      this->Close();
      this->Finish(ToGrpc(status));
    }
  }

 protected:
  using BidiStream<grpc::ServerBidiReactor<Incoming, Outgoing>, Outgoing>::mu_;

  /// Each has to be followed by a ReadOn(). On a thread of gRPC's, one at a time.
  virtual void OnMessage(const Incoming& message) = 0;
  /// Nothing more comes; the call is still to be ended. On a thread of gRPC's.
  virtual void OnReadEnd() = 0;

 private:
  void OnReadDone(bool ok) final {
    if (!ok) {
      OnReadEnd();
      return;
    }
    {
      MutexLock lock(mu_);
      ++unread_;
    }
    OnMessage(incoming_);
    MutexLock lock(mu_);
    is_paused_ = unread_ >= unread_max_;
    if (!is_paused_ && !is_finishing_) {
      this->StartRead(&incoming_);
    }
  }

  void OnDone() final {
    const std::shared_ptr<ServerStream> self = std::move(self_);
    MutexLock lock(mu_);
    this->SetDone();
  }

  const int unread_max_;
  std::shared_ptr<ServerStream> self_;
  Incoming incoming_;

  /// Messages for which no ReadOn() has come.
  int unread_ ABSL_GUARDED_BY(mu_) = 0;
  /// The next ReadOn() reads.
  bool is_paused_ ABSL_GUARDED_BY(mu_) = false;
  bool is_finishing_ ABSL_GUARDED_BY(mu_) = false;
};

/// The streams of one server that gRPC is not done with, for the server's end. Thread: any.
template <class Stream>
class OpenStreams {
 public:
  /// Before its Start(). False: the server is ending, and the stream has to be refused.
  bool Add(const std::shared_ptr<Stream>& stream) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (streams_.size() >= sweep_at_) {
      std::erase_if(streams_, [](const std::weak_ptr<Stream>& weak) { return weak.expired(); });
      sweep_at_ = std::max(kSweepMin, 2 * streams_.size());
    }
    streams_.push_back(stream);
    return !is_ending_;
  }

  /// Writes what is queued, waiting until `deadline` at most, and ends all streams with `status`.
  /// Returns those that gRPC may not be done with. Not on a thread of gRPC's.
  std::vector<std::shared_ptr<Stream>> EndAll(const absl::Status& status, MonoTime deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::shared_ptr<Stream>> open = TakeAll();
    for (const auto& stream : open) {
      stream->WaitWritten(deadline);
      stream->End(status);
    }
    return open;
  }

  /// EndAll() within a second, and ends the server. Not on a thread of gRPC's.
  void End(grpc::Server& server, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    const MonoTime flush_deadline = MonoNow() + kFlushTimeout;
    const std::vector<std::shared_ptr<Stream>> open = EndAll(status, flush_deadline);
    for (const auto& stream : open) {
      stream->WaitDone(flush_deadline);
    }
    server.Shutdown(std::chrono::system_clock::now());
    for (const auto& stream : open) {
      FSDPRUN_CHECK(stream->WaitDoneFor(kDoneTimeout),
                    "gRPC does not finish a stream after shutdown");
    }
    server.Wait();
  }

 private:
  static constexpr size_t kSweepMin = 64;
  static constexpr Duration kFlushTimeout = std::chrono::seconds(1);
  /// gRPC's threads may be starved for a while on a machine with far more to do than processors.
  static constexpr Duration kDoneTimeout = std::chrono::minutes(1);

  std::vector<std::shared_ptr<Stream>> TakeAll() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    is_ending_ = true;
    std::vector<std::shared_ptr<Stream>> open;
    for (const std::weak_ptr<Stream>& weak : streams_) {
      if (std::shared_ptr<Stream> stream = weak.lock()) {
        open.push_back(std::move(stream));
      }
    }
    return open;
  }

  Mutex mu_;
  /// And some that gRPC is done with: they are swept when there are twice as many as were left by
  /// the last sweep.
  std::vector<std::weak_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = kSweepMin;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace fsdprun
