#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/mono_time.h"
#include "base/mutex.h"

namespace fsdprun {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

/// What both ends of a bidirectional stream have: the queue of what is to be written, of which gRPC
/// takes one message at a time, and the end. `Reactor` is gRPC's class for the end; see
/// ServerStream and ClientStream. Thread: reactions run on gRPC's threads, the rest may be called
/// on any.
template <class Reactor, class Outgoing>
class BidiStream : public Reactor {
 public:
  /// Queues the message. Dropped if nothing is written any more.
  void Send(Outgoing message) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (is_closed_) {
      return;
    }
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) {
      this->StartWrite(&outgoing_.front());
    }
  }

  /// How many messages have been sent and not handed to the network.
  size_t Unwritten() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return outgoing_.size();
  }

  /// Waits until all that was sent has been handed to the network; false if that does not come, or
  /// not in time.
  bool WaitWritten(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return is_closed_ || outgoing_.empty();
    });
    return !is_closed_ && outgoing_.empty();
  }

  /// gRPC is done with it.
  bool IsDone() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return is_done_;
  }

  /// False if gRPC is not done with it in time.
  bool WaitDone(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, deadline,
                              [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_done_; });
  }

  /// The same, but of a time in which this process is stopped (SIGSTOP, a machine that sleeps) next
  /// to nothing counts: gRPC's threads do nothing in it, either.
  bool WaitDoneFor(Duration limit) {
    constexpr Duration kLook = std::chrono::milliseconds(100);
    for (Duration counted{}; counted < limit; counted += kLook) {
      if (WaitDone(MonoNow() + kLook)) {
        return true;
      }
    }
    return false;
  }

 protected:
  /// All that was sent has been handed to the network, for now. On a thread of gRPC's.
  virtual void OnAllWritten() {}

  /// Nothing is written after the message that is being written now.
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    is_closed_ = true;
    if (outgoing_.size() > 1) {
      outgoing_.erase(outgoing_.begin() + 1, outgoing_.end());
    }
    changed_.NotifyAll();
  }
  bool is_closed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return is_closed_; }

  /// gRPC will not touch it any more.
  void SetDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    is_closed_ = true;
    is_done_ = true;
    outgoing_.clear();
    changed_.NotifyAll();
  }

  Mutex mu_;

 private:
  void OnWriteDone(bool ok) final {
    bool is_all = false;
    {
      MutexLock lock(mu_);
      outgoing_.pop_front();
      if (!ok) {
        is_closed_ = true;
        outgoing_.clear();
      } else if (!outgoing_.empty()) {
        this->StartWrite(&outgoing_.front());
      }
      is_all = !is_closed_ && outgoing_.empty();
      changed_.NotifyAll();
    }
    if (is_all) {
      OnAllWritten();
    }
  }

  CondVar changed_;
  /// The front is being written. A deque, so that its address stays.
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace fsdprun
