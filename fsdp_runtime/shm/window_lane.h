#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/shm/peers.h"
#include "fsdp_runtime/shm/window.h"

namespace fsdp::shm {

/// An all-gather of a window in flight, or a mark.
struct Gather {
  uint64_t sequence = 0;
  Descriptor descriptor;
};

// Note [Sequence numbers of the window lane]
// The gathers of all windows of a group are one sequence: 1, 2, 3, ... Gather s proceeds as
// follows:
//   1. wait until every rank has done >= s - kWindowDescriptors; then its descriptor's place is
//   free
//   2. write the descriptor, posted = s                    (my part can be read)
//   3. in wait(): until every peer has posted >= s; compare the descriptors of all gathers up to s;
//      done = s                                            (the peers' parts can be read)
// Nobody waits for the peers' end of use: see Note [Who may touch a window].

/// The gathers of all windows of a group. Every rank issues the same ones in the same order, and
/// the caller's thread does the work: there is nothing to copy. Several may be in flight. Lives as
/// long as one likes; when the rank's Group is gone, its peers see it gone. Errors as Group's.
///
/// Thread: wait() and is_done() any, the others the rank's.
class WindowLane {
 public:
  WindowLane(std::shared_ptr<World> world, const Peers& peers);
  WindowLane(const WindowLane&) = delete;
  WindowLane& operator=(const WindowLane&) = delete;

  void add(const std::shared_ptr<Window>& window);

  /// This rank's part can be read, as it is, until every rank has ended this use. Blocks only while
  /// too many gathers are in flight. `purpose`: what the gather is for; ranks compare it. The
  /// window must not be held.
  Gather issue(Window& window, std::string_view purpose);
  /// An operation without data: a rank that waits in a gather for a peer that has ended this part
  /// of the program hears of it.
  Gather mark(std::string_view purpose);
  /// Returns when the window's whole() can be read on this rank. May be called more than once.
  void wait(const Gather& gather);
  /// Whether wait() would return, or throw, at once.
  bool is_done(const Gather& gather) const;

  /// This rank has ended the use of its last gather of the window, also of one that it has not
  /// waited for. Local.
  void release(Window& window);
  /// Returns when the window's own() can be written. This rank must not hold the window: its peers
  /// could wait for it likewise.
  void wait_for_readers(const Window& window);
  /// Of every window that this rank does not hold.
  void wait_for_all_readers();

 private:
  Gather post(Descriptor descriptor, std::string_view purpose, Window* window);
  void make_room(uint64_t sequence);
  /// Waits for all peers to issue gathers up to this one, and compares them.
  void meet(const Gather& gather);
  /// What the ranks have issued as this gather; none if it is the same.
  std::optional<std::string> difference(uint64_t sequence) const;
  Slot& slot(int rank) const { return world_->slot(kWindowLane, rank); }
  Descriptor& descriptor(int rank, uint64_t sequence) const;

  const std::shared_ptr<World> world_;
  const Peers peers_;
  uint64_t sequence_ = 0;  // the rank's thread's

  std::mutex mu_;
  uint64_t compared_ = 0;                       // guarded by mu_
  std::vector<std::weak_ptr<Window>> windows_;  // guarded by mu_
};

}  // namespace fsdp::shm
