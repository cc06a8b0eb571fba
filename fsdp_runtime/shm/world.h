#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_runtime/shm/control.h"
#include "fsdp_runtime/shm/mapping.h"
#include "fsdp_runtime/shm/private_view.h"

namespace fsdp::shm {

/// Key-value store through which the ranks exchange information while forming a world.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there; throws when `deadline` has passed, and where check() does.
  virtual std::string get(const std::string& key,
                          std::chrono::steady_clock::time_point deadline) = 0;
  /// Throws if a rank that is waited for will not come.
  virtual void check() {}
};

/// The memory that the ranks of one host share: a control block with staging rings, and one arena
/// per rank. Constant after construction, except the shared memory itself.
struct World {
  int size = 0;
  /// The rank of this process; -1 when the ranks are threads of it.
  int rank = -1;
  Mapping control;
  std::vector<std::shared_ptr<Mapping>> arenas;
  std::vector<Fd> pidfds;  // per peer; empty when the ranks are threads
  PageMap pages = PageMap::of_this_process();

  Control& block() const { return *reinterpret_cast<Control*>(control.data()); }
  Slot& slot(int lane, int rank_of_slot) const { return block().slots[lane][rank_of_slot]; }
  char* staging(int lane, int rank_of_ring) const;
};

/// Identifies kernel, pid namespace and user: ranks with equal identities can attach to each other.
std::string host_identity();

/// Forms the world of `size` processes; every rank calls it. Rank 0 creates the control block, each
/// rank its arena; descriptors are published as pid and number through `exchange` and opened
/// through /proc. Either all ranks succeed or all throw: Unavailable with the reason of a rank that
/// failed, or Error naming a rank that did not arrive within `timeout`.
std::shared_ptr<World> attach(Exchange& exchange, int rank, int size,
                              std::chrono::milliseconds timeout);

/// A world whose ranks are threads of this process.
std::shared_ptr<World> make_thread_world(int size);

}  // namespace fsdp::shm
