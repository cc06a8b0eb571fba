#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/rpc/tls.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/daemon/daemon_service.h"
#include "launcher/daemon/order_seal.h"

namespace fsdprun {

/// A launcher's side of its calls to one daemon, one call at a time. Thread: loop thread only,
/// hooks too.
class DaemonCall {
 public:
  struct Options {
    /// Numeric `address:port`.
    std::string target;
    std::string token;
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls{};
    /// Whose certificate the daemon must have; empty: the address's.
    std::string tls_name{};
  };
  struct Hooks {
    /// Of a daemon that has proved the token, after the order.
    std::function<void(const v1::DaemonMessage&)> on_message;
    /// The call has ended, or could not be made. PERMISSION_DENIED and UNAUTHENTICATED for who has
    /// not the token, or TLS's means; else the daemon's own status, or UNAVAILABLE.
    std::function<void(const absl::Status&)> on_end;
  };
  /// From Open() to the daemon's answer to the order.
  static constexpr Duration kAnswerTimeout = std::chrono::seconds(10);
  /// Of one message of a daemon.
  static constexpr int kMaxMessageBytes = 1 << 20;

  DaemonCall(EventLoop& loop, Options options, Hooks hooks);
  /// As Close().
  ~DaemonCall();
  DaemonCall(const DaemonCall&) = delete;
  DaemonCall& operator=(const DaemonCall&) = delete;

  /// Makes a call, with this order once the daemon has proved that it has the token.
  void Open(const v1::DaemonOrder& order);
  /// Nothing happens without a call.
  void Send(const v1::LauncherMessage& message);
  /// Ends the call, after what was sent, with a short wait; no hook is called for it.
  void Close();

 private:
  class Stream;

  void OnMessage(uint64_t id, const v1::DaemonMessage& message);
  void OnDone(uint64_t id, const absl::Status& status);
  void End(const absl::Status& status);
  void Drop();

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  const Hooks hooks_;

  // Owned by the loop thread.
  uint64_t last_id_ = 0;
  std::shared_ptr<Stream> stream_;
  CallNonces nonces_;
  std::string order_;
  bool is_answered_ = false;
  EventLoop::TimerId timer_ = 0;
  /// Cancelled ones whose end has not been seen.
  std::vector<std::shared_ptr<Stream>> retired_;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
  const LoopGate gate_{loop_};
};

}  // namespace fsdprun
