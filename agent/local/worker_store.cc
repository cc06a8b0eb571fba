#include "agent/local/worker_store.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/descriptor_limit.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

/// Each process group of a worker may have a client of its own, and another in a thread.
constexpr size_t kConnectionsPerWorker = 8;

}  // namespace

WorkerStore::WorkerStore(EventLoop& loop, Addresses addresses)
    : loop_(loop), addresses_(std::move(addresses)) {}

WorkerStore::WorkerStore(EventLoop& loop, Addresses addresses, std::unique_ptr<StoreThread> bound)
    : loop_(loop), addresses_(std::move(addresses)), server_(std::move(bound)) {}

/// A socket that is bound, but does not listen, keeps the kernel from giving the port to anybody
/// who asks for any, and lets rank 0 bind and listen: both set SO_REUSEADDR.
absl::StatusOr<StoreEndpoint> WorkerStore::ReservePort() {
  const int on = 1, off = 0;
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  socklen_t size = sizeof(any);
  reserved_.reset(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!reserved_.valid()) {
    any.sin6_family = AF_INET;  // The rest of the address is 0 in both families.
    size = sizeof(sockaddr_in);
    reserved_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  ::setsockopt(reserved_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  ::setsockopt(reserved_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  auto* address = reinterpret_cast<sockaddr*>(&any);
  if (::bind(reserved_.get(), address, size) != 0 ||
      ::getsockname(reserved_.get(), address, &size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot find a free port for rank 0: ", ErrorText(errno)));
  }
  return StoreEndpoint{addresses_.advertised, ntohs(any.sin6_port)};
}

void WorkerStore::LetProcessServe(const std::string& program) {
  process_ = std::make_unique<StoreProcess>(loop_, program);
}

void WorkerStore::WarnOfDescriptors(int world_size) {
  const std::string shortage =
      DescriptorShortage(static_cast<uint64_t>(world_size), "workers' connections to the store");
  if (!shortage.empty() && !std::exchange(has_warned_of_descriptors_, true)) {
    Log(LogLevel::kWarning, shortage);
  }
}

absl::StatusOr<StoreEndpoint> WorkerStore::Renew(int world_size, int keeper_pidfd) {
  if (rank_zero_serves_) {
    return ReservePort();
  }
  WarnOfDescriptors(world_size);
  const size_t clients = kConnectionsPerWorker * static_cast<size_t>(world_size);
  if (process_ != nullptr) {
    ASSIGN_OR_RETURN(const int port, process_->Renew(addresses_.listen_on, keeper_pidfd, clients));
    return StoreEndpoint{addresses_.advertised, port};
  }
  if (server_ == nullptr) {
    auto server = std::make_unique<StoreThread>(loop_, StoreServer::Limits{});
    const absl::StatusOr<int> port = server->Listen(addresses_.listen_on, 0);
    if (!port.ok()) {
      return port.status();
    }
    server_ = std::move(server);
  }
  server_->ExpectClients(clients);
  server_->Reset();
  return StoreEndpoint{addresses_.advertised, server_->port()};
}

}  // namespace fsdprun
