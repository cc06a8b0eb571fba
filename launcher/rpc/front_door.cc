#include "launcher/rpc/front_door.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "agent/rpc/call_proof.h"

namespace fsdprun {
namespace {

constexpr char kFirstOfTls = 0x16;
/// Less than gRPC's keepalive takes to end a connection whose other end does not answer.
constexpr Duration kFresh = std::chrono::seconds(2);
constexpr size_t kMaxDrained = 64u << 10;
/// When the kernel asks whether a silent connection's other machine is there, and how often it asks
/// in vain. Its kernel answers, however slow the program is.
constexpr int kProbeSeconds = 1;
constexpr int kProbes = 3;

constexpr char kUnknownAddress[] = "an unknown address";

// `10.0.0.7:4711`; kUnknownAddress of a connection that has ended.
std::string PeerName(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return kUnknownAddress;
  }
  // Of a socket for both versions of IP.
  return absl::StrCat(absl::StripPrefix(host, "::ffff:"), ":", port);
}

// What gRPC calls a peer, `ipv4:10.0.0.7:4711` or `ipv6:%5B::1%5D:4711`, as PeerName() does.
std::string NameOfUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, "ipv4:") && !absl::ConsumePrefix(&uri, "ipv6:")) {
    return std::string(uri);
  }
  return absl::StrReplaceAll(uri, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}, {"%25", "%"}});
}

void ProbeMachineOf(const UniqueFd& connection) {
  const int on = 1;
  ::setsockopt(connection.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_KEEPIDLE, &kProbeSeconds, sizeof(int));
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof(int));
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(int));
}

// Read to its end, as far as it has come, so that the answer is not lost by a reset.
void AnswerAndClose(const UniqueFd& connection, absl::string_view answer) {
  char buffer[4096];
  for (size_t drained = 0; drained < kMaxDrained;) {
    const ssize_t n = ::recv(connection.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n <= 0) {
      break;
    }
    drained += static_cast<size_t>(n);
  }
  ::send(connection.get(), answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

FrontDoor::FrontDoor(EventLoop& loop, Options options, OnRefused on_refused)
    : loop_(loop),
      options_(std::move(options)),
      on_refused_(std::move(on_refused)),
      arrivals_(kArrivalTime),
      fresh_(kFresh - kArrivalTime),
      late_(kNoCallTimeout - kFresh) {}

FrontDoor::~FrontDoor() {
  *is_live_ = false;
  loop_.Cancel(timer_);
}

void FrontDoor::Prepare(grpc::ServerBuilder* builder) {
  constexpr auto kTimeout =
      std::chrono::duration_cast<std::chrono::milliseconds>(kNoCallTimeout).count();
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(kTimeout));
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kTimeout));
  if (options_.tls != nullptr) {
    acceptor_ = builder->experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        options_.tls->ForServer());
  }
}

void FrontDoor::Take(UniqueFd connection) {
  if (arrivals_.size() < kArrivalsMax) {
    LetIn(std::move(connection));
  } else {
    waiting_.push_back(std::move(connection));
  }
}

void FrontDoor::LetInWaiting() {
  while (!waiting_.empty() && arrivals_.size() < kArrivalsMax) {
    UniqueFd connection = std::move(waiting_.front());
    waiting_.pop_front();
    LetIn(std::move(connection));
  }
}

void FrontDoor::LetIn(UniqueFd connection) {
  const std::string peer = PeerName(connection.get());
  const bool has_tls = options_.tls != nullptr;
  if (SpeaksOther(connection)) {
    AnswerAndClose(connection, has_tls ? kAnswerToPlaintext : kAnswerToTls);
    on_refused_(absl::StrCat("a connection from ", peer,
                             has_tls ? ", which speaks no TLS" : ", which speaks TLS"));
    return;
  }
  const int flags = ::fcntl(connection.get(), F_GETFL);
  if (flags < 0 || ::fcntl(connection.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return;
  }
  ProbeMachineOf(connection);
  if (peer != kUnknownAddress) {
    arrivals_.Add({connection.get(), peer}, MonoNow());
    Schedule();
  }
  if (has_tls) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection.release();
    acceptor_->HandleNewConnection(&parameters);
  } else {
    Record(connection, peer);
    grpc::AddInsecureChannelFromFd(server_, connection.release());
  }
}

bool FrontDoor::SpeaksOther(const UniqueFd& connection) const {
  char first = 0;
  if (::recv(connection.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
    return false;
  }
  return (first == kFirstOfTls) != (options_.tls != nullptr);
}

absl::StatusOr<std::string> FrontDoor::RunIdOf(const grpc::CallbackServerContext& call) {
  const std::string peer = NameOf(call.peer());
  absl::StatusOr<std::string> run_id = Judge(call);
  std::string refusal;
  if (absl::IsUnauthenticated(run_id.status())) {
    refusal = absl::StrCat("a call from ", peer, " without the job's token");
  } else if (!run_id.ok()) {
    refusal = absl::StrCat("a call from ", peer, ": ", run_id.status().message());
  }
  PostIfLive([this, peer, refusal] {
    OnCall(peer);
    if (!refusal.empty()) {
      on_refused_(refusal);
    }
  });
  return run_id;
}

absl::StatusOr<std::string> FrontDoor::Judge(const grpc::CallbackServerContext& call) const {
  if (options_.tls != nullptr) {
    const std::shared_ptr<const grpc::AuthContext> caller = call.auth_context();
    if (absl::Status status = options_.tls->CheckCaller(*caller); !status.ok()) {
      return status;
    }
  }
  std::optional<std::string> run_id = ProvenRunId(options_.token, call.client_metadata());
  if (!run_id.has_value()) {
    return absl::UnauthenticatedError("the job's token is missing or wrong");
  }
  return *std::move(run_id);
}

void FrontDoor::OnCall(const std::string& peer) {
  arrivals_.Used(peer);
  fresh_.Used(peer);
  late_.Used(peer);
  LetInWaiting();
}

// A number may be another connection's by now: then the first one has left by itself.
void FrontDoor::ExpireUnused() {
  timer_ = 0;
  const MonoTime now = MonoNow();
  for (UnusedConnections::Connection& connection : arrivals_.TakeExpired(now)) {
    if (PeerName(connection.fd) == connection.peer) {
      fresh_.Add(std::move(connection), now);
    }
  }
  LetInWaiting();
  for (UnusedConnections::Connection& connection : fresh_.TakeExpired(now)) {
    if (PeerName(connection.fd) == connection.peer) {
      late_.Add(std::move(connection), now);
    }
  }
  for (const UnusedConnections::Connection& connection : late_.TakeExpired(now)) {
    on_refused_(absl::StrCat("a connection from ", connection.peer, " that made no call within ",
                             ToSeconds(kNoCallTimeout), " s"));
  }
  Schedule();
}

void FrontDoor::Schedule() {
  const MonoTime next = std::min({arrivals_.next(), fresh_.next(), late_.next()});
  if (timer_ == 0 && next != MonoTime::max()) {
    timer_ = loop_.At(next, [this] { ExpireUnused(); });
  }
}

void FrontDoor::Record(const UniqueFd& connection, const std::string& peer) {
  MutexLock lock(mu_);
  names_[absl::StrCat("fd:", connection.get())] = peer;
}

std::string FrontDoor::NameOf(const std::string& peer) const {
  MutexLock lock(mu_);
  const auto it = names_.find(peer);
  return it == names_.end() ? NameOfUri(peer) : it->second;
}

void FrontDoor::PostIfLive(absl::AnyInvocable<void()> closure) {
  loop_.Post([live = is_live_, closure = std::move(closure)]() mutable {
    if (*live) {
      closure();
    }
  });
}

}  // namespace fsdprun
