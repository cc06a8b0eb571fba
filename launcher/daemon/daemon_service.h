#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/rpc/tls.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "fsdprun/v1/daemon.pb.h"

namespace fsdprun {

/// A daemon's side of launchers' calls: see Note [Who may give orders]. Like a coordinator's
/// service it binds no port. Thread: loop thread only, callbacks too.
class DaemonService {
 public:
  using CallId = uint64_t;
  struct Options {
    std::string token;
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls{};
  };
  struct Callbacks {
    /// The first of a call; its caller has proved the token for it.
    std::function<void(CallId, const v1::DaemonOrder&)> on_order;
    /// Any later one.
    std::function<void(CallId, const v1::LauncherMessage&)> on_message;
    /// All that was sent has been handed to the network.
    std::function<void(CallId)> on_written;
    /// The call has ended, but not by End(). Only of calls that have given an order.
    std::function<void(CallId)> on_lost;
    /// Somebody was turned away; to be logged.
    std::function<void(const std::string& what)> on_refused;
  };
  /// What a launcher may send at once: its environment is part of an order.
  static constexpr int kMaxOrderBytes = 4 << 20;
  /// How long a caller may take for its order.
  static constexpr Duration kOrderTimeout = std::chrono::seconds(10);

  DaemonService(EventLoop& loop, Options options, Callbacks callbacks);
  /// Shutdown().
  ~DaemonService();
  DaemonService(const DaemonService&) = delete;
  DaemonService& operator=(const DaemonService&) = delete;

  /// Starts gRPC. Errors: INTERNAL.
  absl::Status Start();
  /// An accepted connection from which nothing has been read.
  void AddConnection(UniqueFd connection);
  /// Nothing happens if the call has ended.
  void Send(CallId call, v1::DaemonMessage message);
  void End(CallId call, const absl::Status& status);
  /// Ends all calls and gRPC. Idempotent.
  void Shutdown();

 private:
  class Call;
  class Endpoint;

  void Admit(CallId id, const std::shared_ptr<Call>& call);
  void Order(CallId id, const v1::DaemonOrder& order);
  void Message(CallId id, const v1::LauncherMessage& message);
  void Written(CallId id);
  void Refuse(CallId id, const absl::Status& status, const std::string& what);
  void Lose(CallId id);
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  const Callbacks callbacks_;
  std::unique_ptr<Endpoint> endpoint_;

  // Owned by the loop thread.
  struct Open {
    std::shared_ptr<Call> call;
    bool has_ordered = false;
    EventLoop::TimerId order_timer = 0;
  };
  std::map<CallId, Open> calls_;
  bool is_shut_down_ = false;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
