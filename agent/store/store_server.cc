#include "agent/store/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/store/store_server_internal.h"
#include "base/check.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr char kHttp2Preface = 'P';
constexpr char kTlsHandshake = 0x16;
constexpr size_t kReceiveBytes = 64u << 10;
/// A client with this many unread reply bytes is not served until it reads them: a short request
/// may have a long reply.
constexpr size_t kPauseReplyBytes = 1u << 20;
/// A buffer that has grown beyond this is freed once it is empty.
constexpr size_t kKeptBufferBytes = 1u << 20;
constexpr int kBacklog = 4096;
constexpr Duration kRefusalLineInterval = std::chrono::seconds(10);

bool IsWrite(StoreOp op) {
  return op == StoreOp::kSet || op == StoreOp::kCompareSet || op == StoreOp::kAdd ||
         op == StoreOp::kAppend || op == StoreOp::kMultiSet || op == StoreOp::kQueuePush;
}

int BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return -1;
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string PeerName(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[INET6_ADDRSTRLEN] = "";
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return "a client";
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const bool is_v6 = address.ss_family == AF_INET6;
  const void* bytes = is_v6 ? static_cast<const void*>(&v6.sin6_addr) : &v4.sin_addr;
  ::inet_ntop(address.ss_family, bytes, text, sizeof(text));
  return absl::StrCat("the client ", text, " port ", ntohs(is_v6 ? v6.sin6_port : v4.sin_port));
}

absl::StatusOr<UniqueFd> Bind(const std::string& host, int port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  v4.sin_family = AF_INET;
  v6.sin6_family = AF_INET6;
  v4.sin_port = v6.sin6_port = htons(static_cast<uint16_t>(port));
  const bool is_v4 = ::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1;
  if ((!is_v4 && ::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) != 1) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen on '", host, "' port ", port,
                     ": expected a numeric address and a port in 0..65535"));
  }
  UniqueFd fd(::socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return absl::InternalError(absl::StrCat("create a socket for the store: ", ErrorText(errno)));
  }
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const auto* address =
      is_v4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  if (::bind(fd.get(), address, is_v4 ? sizeof(v4) : sizeof(v6)) != 0) {
    return absl::UnavailableError(absl::StrCat("bind the store to ", host, " port ", port, ": ",
                                               ErrorText(errno),
                                               "; choose another port or an address of this host"));
  }
  return fd;
}

}  // namespace

absl::StatusOr<BoundStore> BindStore(const std::string& host) {
  BoundStore bound;
  ASSIGN_OR_RETURN(bound.socket, Bind(host, 0));
  bound.port = BoundPort(bound.socket.get());
  if (::listen(bound.socket.get(), kBacklog) != 0 || bound.port <= 0) {
    return absl::UnavailableError(
        absl::StrCat("listen for store clients on ", host, ": ", ErrorText(errno)));
  }
  return bound;
}

StoreServer::StoreServer(EventLoop& loop) : StoreServer(loop, Limits()) {}

StoreServer::StoreServer(EventLoop& loop, const Limits& limits, ForeignConnection on_foreign)
    : loop_(loop), limits_(limits), on_foreign_(std::move(on_foreign)) {}

StoreServer::~StoreServer() { Close(); }

absl::StatusOr<int> StoreServer::Listen(const std::string& host, int port) {
  ASSIGN_OR_RETURN(UniqueFd fd, Bind(host, port));
  return StartListening(std::move(fd), absl::StrCat(host, " port ", port));
}

absl::StatusOr<int> StoreServer::ListenOn(UniqueFd bound_socket) {
  ::fcntl(bound_socket.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(bound_socket.get(), F_SETFL, ::fcntl(bound_socket.get(), F_GETFL) | O_NONBLOCK);
  return StartListening(std::move(bound_socket), "an inherited socket");
}

absl::StatusOr<int> StoreServer::StartListening(UniqueFd socket, const std::string& name) {
  if (::listen(socket.get(), kBacklog) != 0) {
    return absl::UnavailableError(
        absl::StrCat("listen for store clients on ", name, ": ", ErrorText(errno)));
  }
  const int port = BoundPort(socket.get());
  if (port <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen for store clients on ", name, ": not a bound TCP socket"));
  }
  if (listeners_.empty()) {
    port_ = port;
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  const int listener = listeners_.emplace_back(std::move(socket)).get();
  loop_.Watch(listener, EPOLLIN,
              [this, listener](uint32_t) { AcceptOne(listener, /*predates_reset=*/false); });
  return port;
}

void StoreServer::Reset() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = *(it++)->second;
    if (on_foreign_ && !connection.is_validated && connection.incoming.empty()) {
      connection.predates_reset = true;  // See Note [Silent connections].
    } else {
      Drop(connection.id);
    }
  }
  table_.Clear();
  for (const UniqueFd& listener : listeners_) {
    while (AcceptOne(listener.get(), /*predates_reset=*/true)) {
    }
  }
}

void StoreServer::Close() {
  for (const UniqueFd& listener : listeners_) {
    loop_.Unwatch(listener.get());
  }
  listeners_.clear();
  while (!connections_.empty()) {
    Drop(connections_.begin()->first);
  }
  table_.Clear();
}

bool StoreServer::AcceptOne(int listener, bool predates_reset) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid() && (errno == EMFILE || errno == ENFILE)) {
    // Accept and close with the reserved descriptor: otherwise the loop would spin on the pending
    // client. It may retry.
    NoteRefusal(-1, errno == EMFILE
                        ? "this process has no file descriptor left; raise its limit (ulimit -n)"
                        : "this machine has no file descriptor left (fs.file-max)");
    reserve_.reset();
    const bool refused = UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).valid();
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return refused;
  }
  if (!fd.valid()) {
    return false;
  }
  if (predates_reset && !on_foreign_) {
    return true;
  }
  if (connections_.size() >= max_connections_) {
    NoteRefusal(fd.get(), absl::StrCat("there are ", connections_.size(),
                                       " connections, which is the limit"));
    return true;
  }
  Adopt(std::move(fd), predates_reset);
  return true;
}

void StoreServer::Adopt(UniqueFd fd, bool predates_reset) {
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  const uint64_t id = next_id_++;
  auto connection = std::make_unique<Connection>();
  connection->id = id;
  connection->fd = std::move(fd);
  connection->predates_reset = predates_reset;
  loop_.Watch(connection->fd.get(), EPOLLIN, [this, id](uint32_t events) { OnReady(id, events); });
  connection->handshake_timer = loop_.At(MonoNow() + limits_.handshake_timeout, [this, id] {
    Connection& silent = *connections_.at(id);
    Refuse(silent, absl::StrCat("it did not send the handshake within ",
                                ToSeconds(limits_.handshake_timeout), " s"));
    Drop(id);
  });
  connections_.emplace(id, std::move(connection));
}

void StoreServer::OnReady(uint64_t id, uint32_t events) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) {
    return;
  }
  Connection& connection = *it->second;
  bool goes_on = (events & EPOLLOUT) == 0 || Serve(connection);
  if (goes_on && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    if (!connection.is_validated && connection.incoming.empty() && on_foreign_ &&
        DealWithFirstByte(connection)) {
      return;
    }
    goes_on = !connection.predates_reset && ReceiveSome(connection) && Serve(connection);
  }
  if (!goes_on) {
    Drop(id);
  }
}

/// False if it is for the store.
bool StoreServer::DealWithFirstByte(Connection& connection) {
  char first = 0;
  const ssize_t got = ::recv(connection.fd.get(), &first, 1, MSG_PEEK);
  if (got == 1 && (first == kHttp2Preface || first == kTlsHandshake)) {
    HandOver(connection);
    return true;
  }
  if (!limits_.only_hands_over) {
    return false;
  }
  if (got == 1) {
    NoteRefusal(connection.fd.get(), "no store is here, and it is no agent");
  }
  if (got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    Drop(connection.id);
  }
  return true;
}

void StoreServer::HandOver(Connection& connection) {
  loop_.Unwatch(connection.fd.get());
  loop_.Cancel(connection.handshake_timer);
  UniqueFd fd = std::move(connection.fd);
  connections_.erase(connection.id);
  on_foreign_(std::move(fd));
}

/// False when the client is gone or sent more than may be kept.
bool StoreServer::ReceiveSome(Connection& connection) {
  char buffer[kReceiveBytes];
  const ssize_t got = ::recv(connection.fd.get(), buffer, sizeof(buffer), 0);
  if (got <= 0) {
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  }
  connection.incoming.append(buffer, static_cast<size_t>(got));
  incoming_bytes_ += static_cast<size_t>(got);
  if (incoming_bytes_ > limits_.max_incoming_bytes) {
    Refuse(connection, absl::StrCat("incomplete requests hold ", incoming_bytes_,
                                    " bytes, the limit is ", limits_.max_incoming_bytes));
  }
  return !connection.is_broken;
}

/// Serves received requests for as long as the client reads its replies. False: to be dropped.
bool StoreServer::Serve(Connection& connection) {
  for (;;) {
    const size_t size_before = connection.incoming.size();
    if (!SendReplies(connection)) {
      return false;
    }
    if (connection.PendingReplyBytes() > 0) {
      return true;
    }
    if (!AnswerRequests(connection) || !SendReplies(connection)) {
      return false;
    }
    if (connection.incoming.size() == size_before) {
      return true;
    }
  }
}

bool StoreServer::AnswerRequests(Connection& connection) {
  size_t used = 0;
  while (connection.incoming.size() - used >= connection.needed && !connection.is_broken &&
         connection.PendingReplyBytes() < kPauseReplyBytes) {
    StoreRequest request;
    size_t consumed = 0;
    const StoreParse parse =
        ParseStoreRequest(std::string_view(connection.incoming).substr(used), limits_.request,
                          request, consumed, connection.needed);
    if (parse == StoreParse::kInvalid) {
      Refuse(connection, "its request is not a store request, or exceeds a limit");
      return false;
    }
    if (parse == StoreParse::kIncomplete) {
      break;
    }
    used += consumed;
    connection.needed = 1;
    if (IsWrite(request.op) && table_.SizeBytes() + consumed > limits_.max_table_bytes) {
      Refuse(connection,
             absl::StrCat("the store is full: ", table_.SizeBytes(), " bytes and a request of ",
                          consumed, ", the limit is ", limits_.max_table_bytes));
      return false;
    }
    Apply(connection, request);
  }
  connection.incoming.erase(0, used);
  if (connection.incoming.empty() && connection.incoming.capacity() > kKeptBufferBytes) {
    connection.incoming.shrink_to_fit();
  }
  incoming_bytes_ -= used;
  return !connection.is_broken;
}

/// False when the client is gone or does not read its answers.
bool StoreServer::SendReplies(Connection& connection) {
  while (connection.PendingReplyBytes() > 0) {
    const ssize_t n =
        ::send(connection.fd.get(), connection.replies.data() + connection.replies_sent,
               connection.PendingReplyBytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return false;
      }
      break;
    }
    connection.replies_sent += static_cast<size_t>(n);
  }
  const bool has_more = connection.PendingReplyBytes() > 0;
  if (!has_more) {
    connection.replies.clear();
    connection.replies_sent = 0;
  }
  if (has_more != connection.watches_output) {
    // Until the client has read its replies, its further requests stay in the kernel's buffer.
    loop_.Rewatch(connection.fd.get(), has_more ? EPOLLOUT : EPOLLIN);
    connection.watches_output = has_more;
  }
  reply_bytes_ += connection.PendingReplyBytes() - connection.counted_reply_bytes;
  connection.counted_reply_bytes = connection.PendingReplyBytes();
  if (has_more && reply_bytes_ > limits_.max_all_reply_bytes) {
    Refuse(connection,
           absl::StrCat("clients have not read ", reply_bytes_, " bytes of answers, the limit is ",
                        limits_.max_all_reply_bytes));
  }
  if (connection.PendingReplyBytes() > limits_.max_pending_reply_bytes) {
    Refuse(connection,
           absl::StrCat("it has not read ", connection.PendingReplyBytes(),
                        " bytes of answers, the limit is ", limits_.max_pending_reply_bytes));
  }
  return !connection.is_broken;
}

/// Marks the client to be dropped, and logs why.
void StoreServer::Refuse(Connection& connection, const std::string& why) {
  connection.is_broken = true;
  NoteRefusal(connection.fd.get(), why);
}

/// `fd`: the client's socket, or -1 if it has none yet.
void StoreServer::NoteRefusal(int fd, const std::string& why) {
  const MonoTime now = MonoNow();
  if (now < next_refusal_line_) {
    ++suppressed_refusals_;
    return;
  }
  next_refusal_line_ = now + kRefusalLineInterval;
  const int suppressed = std::exchange(suppressed_refusals_, 0);
  Log(LogLevel::kWarning,
      absl::StrCat(
          limits_.only_hands_over ? "the port " : "the workers' store on port ", port_,
          " disconnected ", PeerName(fd), ": ", why,
          suppressed > 0 ? absl::StrCat(" (", suppressed, " more since the last such line)") : ""));
}

void StoreServer::Drop(uint64_t id) {
  const auto it = connections_.find(id);
  FSDPRUN_CHECK(it != connections_.end(), "a connection is dropped once");
  table_.RemoveWaiter(id);
  incoming_bytes_ -= it->second->incoming.size();
  reply_bytes_ -= it->second->counted_reply_bytes;
  loop_.Unwatch(it->second->fd.get());
  loop_.Cancel(it->second->handshake_timer);
  connections_.erase(it);
}

}  // namespace fsdprun
