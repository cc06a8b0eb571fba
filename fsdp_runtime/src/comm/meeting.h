#pragma once

#include <c10/util/intrusive_ptr.h>
#include <fsdp/export.h>
#include <fsdp/process_group.h>

#include <functional>
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
class FSDP_API StoreExchange : public shm::Exchange {
 public:
  /// `check_peers`: throws if one is known to be gone. Called now and then by a rank that waits.
  StoreExchange(std::shared_ptr<StoreClient> store, std::string prefix,
                std::function<void()> check_peers)
      : store_(std::move(store)),
        prefix_(std::move(prefix)),
        check_peers_(std::move(check_peers)) {}
  void put(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + "/" + key, value);
  }
  /// Errors, besides: StoreError, see wait_in_looks().
  std::string get(const std::string& key, StoreClient::TimePoint deadline) override;
  /// Errors: c10::Error if a rank has given up, what check_peers throws; StoreError.
  void check() override;
  /// Tells the others that this rank will not come, which ends their waits.
  void give_up(int64_t rank, const std::string& why);
  /// Does not wait for the key.
  bool has(const std::string& key) { return store_->check({prefix_ + "/" + key}); }

 private:
  const std::shared_ptr<StoreClient> store_;
  const std::string prefix_;
  const std::function<void()> check_peers_;
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
