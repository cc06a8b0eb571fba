#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agent/local/store_process.h"
#include "agent/store/store_thread.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Serves MASTER_ADDR:MASTER_PORT of a generation when this node has group rank 0: on a port that
/// was bound beforehand (static rendezvous, coordinator's port), or on a free port of this node's
/// address. Thread: loop thread only.
class WorkerStore {
 public:
  struct Addresses {
    /// Numeric: where a free port is bound.
    std::string listen_on;
    /// For the workers: a numeric address or a name that all nodes resolve to this one.
    std::string advertised;
  };

  /// Binds a free port when a store is first needed.
  WorkerStore(EventLoop& loop, Addresses addresses);
  /// Serves on `bound`, which already listens.
  WorkerStore(EventLoop& loop, Addresses addresses, std::unique_ptr<StoreThread> bound);

  /// From here on rank 0 serves the store of each generation, on a port that Renew() finds.
  void LetRankZeroServe() { rank_zero_serves_ = true; }

  /// From here on the store of each generation is a process, which outlives this one as long as
  /// the keeper does.
  void LetProcessServe(const std::string& program);
  /// Null unless a process serves.
  StoreProcess* process() const { return process_.get(); }

  /// Empties the store for a new generation of so many workers, so that no key of an earlier one
  /// can be read. `keeper_pidfd`: of whoever's end is that of a process that serves.
  absl::StatusOr<StoreEndpoint> Renew(int world_size, int keeper_pidfd = -1);

 private:
  absl::StatusOr<StoreEndpoint> ReservePort();
  void WarnOfDescriptors(int world_size);

  EventLoop& loop_;
  const Addresses addresses_;
  std::unique_ptr<StoreThread> server_;
  std::unique_ptr<StoreProcess> process_;
  bool rank_zero_serves_ = false;
  bool has_warned_of_descriptors_ = false;
  UniqueFd reserved_;
};

}  // namespace fsdprun
