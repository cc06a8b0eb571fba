#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_builder.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/rpc/tls.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "launcher/rpc/unused_connections.h"

namespace fsdprun {

/// Takes connections that were accepted elsewhere to a gRPC server, with TLS if there are
/// certificates, and says which calls may be answered. Who is refused, here or by a handshake that
/// does not end, is told of. Thread: loop thread, but for RunIdOf().
//
// Note [One after the other]
// When thousands of nodes come at once, their handshakes must not delay the beats of those that are
// there. At most kArrivalsMax connections are in their handshake; the others wait here, unread, and
// each that has made its call, or has taken kArrivalTime, lets in the next. So who connects and
// says nothing delays the others by little.
class FrontDoor {
 public:
  struct Options {
    /// See Note [The token stays at home].
    std::string token;
    /// Null: nothing is encrypted.
    std::shared_ptr<const Tls> tls;
  };
  /// On the loop thread: `a call from 10.0.0.7:4711 without the job's token`.
  using OnRefused = std::function<void(const std::string& what)>;

  /// How long a connection may be without a call: of an unknown client, or in a handshake. An agent
  /// makes its call at once and keeps it open.
  static constexpr Duration kNoCallTimeout = std::chrono::seconds(5);
  /// See Note [One after the other].
  static constexpr size_t kArrivalsMax = 64;
  static constexpr Duration kArrivalTime = std::chrono::milliseconds(100);

  FrontDoor(EventLoop& loop, Options options, OnRefused on_refused);
  ~FrontDoor();
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

  /// Before the server is built.
  void Prepare(grpc::ServerBuilder* builder);
  /// Its server, from which on connections can be taken.
  void Open(grpc::Server* server) { server_ = server; }
  /// A connection from which nothing has been read.
  void Take(UniqueFd connection);

  /// For which run id a call proves that its caller may speak. Errors: UNAUTHENTICATED (without the
  /// token), PERMISSION_DENIED (TLS); the caller is to be told. Any thread.
  absl::StatusOr<std::string> RunIdOf(const grpc::CallbackServerContext& call)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool SpeaksOther(const UniqueFd& connection) const;
  void LetIn(UniqueFd connection);
  void LetInWaiting();
  void OnCall(const std::string& peer);
  void Record(const UniqueFd& connection, const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  std::string NameOf(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> Judge(const grpc::CallbackServerContext& call) const;
  void ExpireUnused();
  void Schedule();
  void PostIfLive(absl::AnyInvocable<void()> closure);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  const OnRefused on_refused_;

  // Owned by the loop thread.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  grpc::Server* server_ = nullptr;
  /// Those that have to wait.
  std::deque<UniqueFd> waiting_;
  /// Those that have just been let in; those that may still leave by themselves, as one that only
  /// looks who listens; and those that were still there a while later: they count as refused if no
  /// call comes, whoever ends them.
  UnusedConnections arrivals_;
  UnusedConnections fresh_;
  UnusedConnections late_;
  EventLoop::TimerId timer_ = 0;
  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);

  mutable Mutex mu_;
  /// Peer address by what gRPC calls a connection that has no TLS, `fd:7`. Entries of closed
  /// descriptors stay; since numbers are reused, the map is bounded by the descriptor limit.
  std::map<std::string, std::string> names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace fsdprun
