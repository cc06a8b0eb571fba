#pragma once

#include <c10/util/intrusive_ptr.h>
#include <fsdp/process_group.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/shm/world.h"
#include "fsdp_runtime/store/store_client.h"

namespace c10d {
class TCPStore;
}

namespace fsdp {

/// Adapts the store to shm::Exchange, with keys under the group's prefix.
class StoreExchange : public shm::Exchange {
 public:
  StoreExchange(std::shared_ptr<StoreClient> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void put(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + "/" + key, value);
  }
  std::string get(const std::string& key, StoreClient::TimePoint deadline) override {
    return store_->get(prefix_ + "/" + key, deadline);
  }
  /// Does not wait for the key.
  bool has(const std::string& key) { return store_->check({prefix_ + "/" + key}); }

 private:
  const std::shared_ptr<StoreClient> store_;
  const std::string prefix_;
};

/// The store that a rank serves; it ends with the last reference.
using ServedStore = c10::intrusive_ptr<c10d::TCPStore>;
/// Serves it on options.master_port. Errors: TORCH_CHECK if the port is taken.
ServedStore serve_store(const ProcessGroupOptions& options);

/// What each rank tells the others before anything else.
struct Arrival {
  std::string backend;
  std::string device_type;
  std::string host;
};

/// Of each rank, by number. All ranks that are to form a group call this; waits for them until
/// `deadline`. Errors: c10::Error naming the ranks that did not arrive; on all ranks OptionMismatch
/// if their options differ; StoreError.
std::vector<Arrival> meet_in(StoreExchange& exchange, const ProcessGroupOptions& options,
                             StoreClient::TimePoint deadline);

}  // namespace fsdp
