#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_runtime/shm/control.h"
#include "fsdp_runtime/shm/mapping.h"

namespace fsdp::shm {

/// How ranks find each other once: a key-value store that all of them reach.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there; throws when `deadline` has passed.
  virtual std::string get(const std::string& key,
                          std::chrono::steady_clock::time_point deadline) = 0;
};

/// The memory that the ranks of one host share: a control block with staging rings, and one arena
/// per rank. Constant after construction but for the shared words themselves.
struct World {
  int size = 0;
  /// The rank of this process; -1 when the ranks are threads of it.
  int rank = -1;
  Mapping control;
  std::vector<std::shared_ptr<Mapping>> arenas;
  std::vector<Fd> pidfds;  // per peer; empty when the ranks are threads

  Control& block() const { return *reinterpret_cast<Control*>(control.data()); }
  Slot& slot(int lane, int rank_of_slot) const { return block().slots[lane][rank_of_slot]; }
  char* staging(int lane, int rank_of_ring) const;
};

/// A name for "same kernel, same pid namespace, same user": ranks with equal names can attach to
/// each other.
std::string host_identity();

/// Forms the world of `size` processes; every rank calls it. Rank 0 creates the control block, each
/// rank its arena; descriptors travel as pid and number through `exchange` and are opened through
/// /proc. Either all ranks succeed or all throw: Unavailable with the reason of one that could not,
/// or Error naming a rank that did not come within `timeout`.
std::shared_ptr<World> attach(Exchange& exchange, int rank, int size,
                              std::chrono::milliseconds timeout);

/// A world whose ranks are threads of this process.
std::shared_ptr<World> make_thread_world(int size);

}  // namespace fsdp::shm
