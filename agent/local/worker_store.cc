#include "agent/local/worker_store.h"

#include <utility>

namespace fsdprun {

WorkerStore::WorkerStore(EventLoop& loop, Addresses addresses)
    : loop_(loop), addresses_(std::move(addresses)) {}

WorkerStore::WorkerStore(EventLoop& loop, Addresses addresses, std::unique_ptr<StoreServer> bound)
    : loop_(loop), addresses_(std::move(addresses)), server_(std::move(bound)) {}

absl::StatusOr<StoreEndpoint> WorkerStore::Renew() {
  if (server_ == nullptr) {
    auto server = std::make_unique<StoreServer>(loop_);
    const absl::StatusOr<int> port = server->Listen(addresses_.listen_on, 0);
    if (!port.ok()) {
      return port.status();
    }
    server_ = std::move(server);
  }
  server_->Reset();
  return StoreEndpoint{addresses_.advertised, server_->port()};
}

}  // namespace fsdprun
