#include "agent/store/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr char kHttp2Preface = 'P';
constexpr char kTlsHandshake = 0x16;
constexpr size_t kReceiveBytes = 64u << 10;
/// With this much unread, a client's further requests wait: a short request may ask for a long
/// answer.
constexpr size_t kPauseReplyBytes = 1u << 20;
/// A buffer that has grown beyond this is given back once it is empty.
constexpr size_t kKeptBufferBytes = 1u << 20;
constexpr int kBacklog = 4096;
constexpr auto kEveryone = std::numeric_limits<size_t>::max();
constexpr uint8_t kReady = 0;
constexpr uint8_t kNotReady = 1;
constexpr uint8_t kStopWaiting = 0;
constexpr uint8_t kWaitCanceled = 1;

std::string ErrorText(int error) { return std::generic_category().message(error); }

template <class Integer>
void PutInt(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(std::string& out, std::string_view text) {
  PutInt(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

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

struct StoreServer::Connection {
  uint64_t id = 0;
  UniqueFd fd;
  bool is_validated = false;
  std::string incoming;
  /// The request at the front cannot be complete with fewer bytes.
  size_t needed = 1;
  std::string replies;
  size_t replies_sent = 0;
  bool watches_output = false;
  /// A limit was exceeded or a value cannot be what the operation needs; to be dropped.
  bool is_broken = false;

  size_t PendingReplyBytes() const { return replies.size() - replies_sent; }
};

StoreServer::StoreServer(EventLoop& loop) : StoreServer(loop, Limits()) {}

StoreServer::StoreServer(EventLoop& loop, const Limits& limits, ForeignConnection on_foreign)
    : loop_(loop), limits_(limits), on_foreign_(std::move(on_foreign)) {}

StoreServer::~StoreServer() {
  *is_alive_ = false;
  Close();
}

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
  FSDPRUN_CHECK(!listener_.valid(), "a store server listens once");
  if (::listen(socket.get(), kBacklog) != 0) {
    return absl::UnavailableError(
        absl::StrCat("listen for store clients on ", name, ": ", ErrorText(errno)));
  }
  const int port = BoundPort(socket.get());
  if (port <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen for store clients on ", name, ": not a bound TCP socket"));
  }
  listener_ = std::move(socket);
  port_ = port;
  reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { OnAcceptable(); });
  return port_;
}

void StoreServer::Reset(uint64_t generation) {
  generation_ = generation;
  while (!connections_.empty()) {
    Drop(connections_.begin()->first);
  }
  table_.Clear();
  // Clients still in the accept queue connected before this generation began.
  while (listener_.valid()) {
    const UniqueFd stale(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!stale.valid()) {
      break;
    }
  }
}

void StoreServer::Close() {
  if (listener_.valid()) {
    loop_.Unwatch(listener_.get());
    listener_.reset();
  }
  while (!connections_.empty()) {
    Drop(connections_.begin()->first);
  }
  table_.Clear();
}

void StoreServer::OnAcceptable() {
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid() && (errno == EMFILE || errno == ENFILE)) {
    // Without this the loop would spin on the waiting client. It is told by a closed connection and
    // may try again.
    reserve_.reset();
    { const UniqueFd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return;
  }
  if (!fd.valid() || connections_.size() >= limits_.max_connections) {
    return;
  }
  const int one = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  const uint64_t id = next_id_++;
  auto connection = std::make_unique<Connection>();
  connection->id = id;
  connection->fd = std::move(fd);
  loop_.Watch(connection->fd.get(), EPOLLIN, [this, id](uint32_t events) { OnReady(id, events); });
  connections_.emplace(id, std::move(connection));
  CheckHandshake(id);
}

/// Arms the deadline for the first bytes. One timer per connection, ended with it or by validation.
void StoreServer::CheckHandshake(uint64_t id) {
  const auto is_alive = is_alive_;
  loop_.At(MonoNow() + limits_.handshake_timeout, [this, is_alive, id] {
    if (!*is_alive) {
      return;
    }
    const auto it = connections_.find(id);
    if (it != connections_.end() && !it->second->is_validated) {
      Drop(id);
    }
  });
}

void StoreServer::OnReady(uint64_t id, uint32_t events) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) {
    return;
  }
  Connection& connection = *it->second;
  bool goes_on = (events & EPOLLOUT) == 0 || Serve(connection);
  if (goes_on && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    if (!connection.is_validated && connection.incoming.empty() && on_foreign_) {
      char first = 0;
      if (::recv(connection.fd.get(), &first, 1, MSG_PEEK) == 1 &&
          (first == kHttp2Preface || first == kTlsHandshake)) {
        return HandOver(connection);
      }
    }
    goes_on = ReceiveSome(connection) && Serve(connection);
  }
  if (!goes_on) {
    Drop(id);
  }
}

void StoreServer::HandOver(Connection& connection) {
  loop_.Unwatch(connection.fd.get());
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
  return incoming_bytes_ <= limits_.max_incoming_bytes;
}

/// Answers what has been received for as long as the client reads its answers. False: to be
/// dropped.
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
      return false;
    }
    if (parse == StoreParse::kIncomplete) {
      break;
    }
    used += consumed;
    connection.needed = 1;
    if (IsWrite(request.op) && table_.SizeBytes() + consumed > limits_.max_table_bytes) {
      Log(LogLevel::kError,
          absl::StrCat("store full table_bytes=", table_.SizeBytes(), " request_bytes=", consumed,
                       " limit=", limits_.max_table_bytes, "; the client is disconnected"));
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
    // Until it has read its answers, a client gets no further ones: its requests wait in the
    // kernel.
    loop_.Rewatch(connection.fd.get(), has_more ? EPOLLOUT : EPOLLIN);
    connection.watches_output = has_more;
  }
  return connection.PendingReplyBytes() <= limits_.max_pending_reply_bytes;
}

void StoreServer::Apply(Connection& connection, StoreRequest& request) {
  if (!connection.is_validated) {
    connection.is_validated =
        request.op == StoreOp::kValidate && request.number == kStoreValidationWord;
    connection.is_broken = !connection.is_validated;
    return;
  }
  switch (request.op) {
    case StoreOp::kPing:
      return PutInt(connection.replies, static_cast<uint32_t>(request.number));
    case StoreOp::kValidate:
      connection.is_broken = true;
      return;
    case StoreOp::kKeyCount:
      return PutInt(connection.replies, static_cast<int64_t>(table_.KeyCount()));
    case StoreOp::kListKeys:
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kCancelWait:
    case StoreOp::kMultiGet:
    case StoreOp::kMultiSet:
      return ApplyToKeys(connection, request);
    case StoreOp::kQueuePush:
    case StoreOp::kQueuePop:
    case StoreOp::kQueueLength:
      return ApplyToQueue(connection, request);
    default:
      return ApplyToValue(connection, request);
  }
}

void StoreServer::ApplyToValue(Connection& connection, StoreRequest& request) {
  const std::string& key = request.keys[0];
  switch (request.op) {
    case StoreOp::kSet:
      table_.Set(key, std::move(request.values[0]));
      return Wake(key, kEveryone);
    case StoreOp::kAppend:
      table_.Append(key, request.values[0]);
      return Wake(key, kEveryone);
    case StoreOp::kCompareSet:
      PutText(connection.replies, table_.CompareSet(key, request.values[0], request.values[1]));
      return table_.Exists(key) ? Wake(key, kEveryone) : void();
    case StoreOp::kAdd: {
      const std::optional<int64_t> sum = table_.Add(key, request.number);
      connection.is_broken = !sum.has_value();
      PutInt(connection.replies, sum.value_or(0));
      return sum ? Wake(key, kEveryone) : void();
    }
    case StoreOp::kGet: {
      // PyTorch's server answers a missing key with an empty value; its clients wait first.
      const std::string* value = table_.Find(key);
      return PutText(connection.replies, value ? std::string_view(*value) : std::string_view());
    }
    case StoreOp::kDelete:
      return PutInt(connection.replies, static_cast<int64_t>(table_.Delete(key)));
    default:
      FSDPRUN_CHECK(false, "an operation on a value is missing here");
  }
}

void StoreServer::ApplyToKeys(Connection& connection, StoreRequest& request) {
  switch (request.op) {
    case StoreOp::kCheck:
      return PutInt(connection.replies, table_.ExistAll(request.keys) ? kReady : kNotReady);
    case StoreOp::kWait:
      if (table_.ExistAll(request.keys)) {
        return PutInt(connection.replies, kStopWaiting);
      }
      return table_.AddWaiter(connection.id, request.keys);
    case StoreOp::kCancelWait:
      table_.RemoveWaiter(connection.id);
      return PutInt(connection.replies, kWaitCanceled);
    case StoreOp::kMultiGet:
      for (const std::string& key : request.keys) {
        const std::string* value = table_.Find(key);
        PutText(connection.replies, value ? std::string_view(*value) : std::string_view());
        connection.is_broken |= connection.PendingReplyBytes() > limits_.max_pending_reply_bytes;
        if (connection.is_broken) {
          return;
        }
      }
      return;
    case StoreOp::kMultiSet:
      for (size_t i = 0; i < request.keys.size(); ++i) {
        table_.Set(request.keys[i], std::move(request.values[i]));
        Wake(request.keys[i], kEveryone);
      }
      return;
    case StoreOp::kListKeys: {
      PutInt(connection.replies, static_cast<int64_t>(table_.KeyCount()));
      for (const std::string& key : table_.Keys()) {
        PutText(connection.replies, key);
      }
      return;
    }
    default:
      FSDPRUN_CHECK(false, "an operation on several keys is missing here");
  }
}

void StoreServer::ApplyToQueue(Connection& connection, StoreRequest& request) {
  const std::string& key = request.keys[0];
  switch (request.op) {
    case StoreOp::kQueuePush:
      table_.Push(key, std::move(request.values[0]));
      // One item serves one client.
      return Wake(key, 1);
    case StoreOp::kQueueLength:
      return PutInt(connection.replies, static_cast<int64_t>(table_.QueueLength(key)));
    case StoreOp::kQueuePop: {
      PutInt(connection.replies, static_cast<int64_t>(table_.QueueLength(key)));
      if (const std::optional<std::string> value = table_.Pop(key)) {
        PutText(connection.replies, *value);
      }
      return;
    }
    default:
      FSDPRUN_CHECK(false, "an operation on a queue is missing here");
  }
}

void StoreServer::Wake(const std::string& key, size_t at_most) {
  for (const uint64_t id : table_.TakeSatisfied(key, at_most)) {
    Connection& waiter = *connections_.at(id);
    PutInt(waiter.replies, kStopWaiting);
    // A broken waiter is found by its own events; it must not be dropped while another request is
    // being answered.
    if (waiter.PendingReplyBytes() == sizeof(kStopWaiting)) {
      [[maybe_unused]] const bool is_sent = SendReplies(waiter);
    }
  }
}

void StoreServer::Drop(uint64_t id) {
  const auto it = connections_.find(id);
  FSDPRUN_CHECK(it != connections_.end(), "a connection is dropped once");
  table_.RemoveWaiter(id);
  incoming_bytes_ -= it->second->incoming.size();
  loop_.Unwatch(it->second->fd.get());
  connections_.erase(it);
}

}  // namespace fsdprun
