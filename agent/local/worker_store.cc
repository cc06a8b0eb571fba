#include "agent/local/worker_store.h"

#include <utility>

namespace fsdprun {

WorkerStore::WorkerStore(EventLoop& loop, std::string address)
    : loop_(loop), address_(std::move(address)) {}

WorkerStore::WorkerStore(EventLoop& loop, std::string address, std::unique_ptr<StoreServer> bound)
    : loop_(loop), address_(std::move(address)), server_(std::move(bound)) {}

absl::StatusOr<StoreEndpoint> WorkerStore::Renew() {
  if (server_ == nullptr) {
    auto server = std::make_unique<StoreServer>(loop_);
    const absl::StatusOr<int> port = server->Listen(address_, 0);
    if (!port.ok()) {
      return port.status();
    }
    server_ = std::move(server);
  }
  server_->Reset();
  return StoreEndpoint{address_, server_->port()};
}

}  // namespace fsdprun
