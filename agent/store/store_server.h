#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/store/key_value_table.h"
#include "agent/store/store_protocol.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// A socket at which store clients queue up until somebody serves them.
struct BoundStore {
  UniqueFd socket;
  int port = 0;
};
/// Binds a free port of a numeric address, and listens. Errors: as of StoreServer::Listen().
absl::StatusOr<BoundStore> BindStore(const std::string& host);

/// A key-value server for unmodified torch.distributed.TCPStore clients (libuv or legacy,
/// is_master=False). One per generation, or one that is Reset() between generations. It never
/// resolves a name, forward or reverse: hosts are numeric. Thread: loop thread only (construction
/// and Listen() also before the loop runs). Memory: bounded by Limits; a client that exceeds one is
/// disconnected, which is logged at most every 10 s; the others are not affected.
class StoreServer {
 public:
  struct Limits {
    StoreRequestLimits request;
    /// Sum over all keys and values.
    size_t max_table_bytes = 1u << 30;
    /// Requests received but not complete, over all clients.
    size_t max_incoming_bytes = 1u << 30;
    /// Answers queued for one client that does not read them.
    size_t max_pending_reply_bytes = 512u << 20;
    /// The same over all clients.
    size_t max_all_reply_bytes = 2u << 30;
    /// Keys that clients wait for, each as often as somebody waits for it.
    size_t max_awaited_bytes = 1u << 30;
    /// Or what ExpectClients() says, if that is more.
    size_t max_connections = 16384;
    /// A connection must send its validation word within this time.
    Duration handshake_timeout = std::chrono::seconds(10);
    /// There is no store: whoever is not of the other protocol is disconnected, and nothing is read
    /// of it.
    bool only_hands_over = false;
  };
  /// Receives a connection whose first byte is 'P' (HTTP/2 preface) or 0x16 (TLS); nothing has been
  /// read from it. This lets gRPC and the store share one port.
  using ForeignConnection = std::function<void(UniqueFd)>;

  explicit StoreServer(EventLoop& loop);
  StoreServer(EventLoop& loop, const Limits& limits, ForeignConnection on_foreign = nullptr);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// Binds a numeric address ("127.0.0.1", "::1", "0.0.0.0") and port (0: any free one); returns
  /// the port. Errors: INVALID_ARGUMENT (not numeric), UNAVAILABLE naming address, port and reason
  /// (in use, not local).
  absl::StatusOr<int> Listen(const std::string& host, int port);
  /// The same with a socket that is bound (listening or not yet) by someone else. May be called
  /// again, for further addresses; port() is the first one's.
  absl::StatusOr<int> ListenOn(UniqueFd bound_socket);

  /// Removes every key and disconnects every client, so that no key of an earlier world can be read
  /// and no earlier client can write. The listening socket stays open.
  //
  // Note [Silent connections]
  // On a port that is shared with another protocol, a connection that has not sent a byte may be an
  // agent that joins, or a client of the world that ends here. It is kept until its first byte
  // tells: the other protocol's is handed over, a store client is disconnected, because workers of
  // the next world are started after the reset and cannot have connected before it. The same holds
  // for connections that the kernel has accepted and this process has not.
  void Reset();
  /// So many clients may connect at once, although the limit is lower: the world is so large.
  void ExpectClients(size_t count) { max_connections_ = std::max(limits_.max_connections, count); }
  /// Ends listening and every connection. Called by the destructor.
  void Close();

  int port() const { return port_; }
  size_t connection_count() const { return connections_.size(); }

 private:
  struct Connection;

  absl::StatusOr<int> StartListening(UniqueFd socket, const std::string& name);
  /// False if nobody is waiting to be accepted, or this process cannot accept.
  bool AcceptOne(int listener, bool predates_reset);
  void Adopt(UniqueFd fd, bool predates_reset);
  void OnReady(uint64_t id, uint32_t events);
  bool DealWithFirstByte(Connection& connection);
  void HandOver(Connection& connection);
  bool ReceiveSome(Connection& connection);
  bool Serve(Connection& connection);
  bool AnswerRequests(Connection& connection);
  bool SendReplies(Connection& connection);
  void Apply(Connection& connection, StoreRequest& request);
  void ApplyToValue(Connection& connection, StoreRequest& request);
  void ApplyToKeys(Connection& connection, StoreRequest& request);
  void ApplyToQueue(Connection& connection, StoreRequest& request);
  void Wake(const std::string& key, size_t at_most);
  void Refuse(Connection& connection, const std::string& why);
  void NoteRefusal(int fd, const std::string& why);
  void Drop(uint64_t id);

  // Constant after construction.
  EventLoop& loop_;
  const Limits limits_;
  const ForeignConnection on_foreign_;

  // Owned by the loop thread.
  std::vector<UniqueFd> listeners_;
  /// Closed to make room for accepting and closing a connection when the process has no descriptor
  /// left.
  UniqueFd reserve_;
  int port_ = 0;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  KeyValueTable table_;
  size_t incoming_bytes_ = 0;
  /// Of all connections, as it was when each was last served.
  size_t reply_bytes_ = 0;
  size_t max_connections_ = limits_.max_connections;
  MonoTime next_refusal_line_{};
  int suppressed_refusals_ = 0;
};

}  // namespace fsdprun
