#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/shm/arena.h"
#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/shm/peers.h"
#include "fsdp_runtime/shm/private_view.h"

namespace fsdp::shm {

// Note [Who may touch a window]
// All ranks issue the same gathers of a window in the same order. gathered(r) counts those that
// rank r has issued, released(r) those whose use it has ended; while it holds the window the first
// is one ahead of the second. By gather n rank r promises that its part stays as it is until every
// rank has released n. So
//   r may read whole()  if gathered(r) = released(r) + 1, and every peer has issued that gather;
//   r may write own()   if gathered(r) = released(r), and released(p) >= gathered(r) for every p.
// Say r reads in its use n: released(r) = n - 1, and gathered(p) >= n for every p. Nobody but p
// writes p's part, and p would need released(r) >= gathered(p): it does not, until r releases n.
// What r sees is what p had written before it issued n: that gather publishes it, and what p writes
// later is ordered behind r's release. A peer that lags only keeps a writer waiting, never a reader
// of what is published already.

/// How often a rank has gathered a window. In its arena; written by it alone.
struct WindowUses {
  alignas(64) std::atomic<uint64_t> gathered;
  std::atomic<uint64_t> released;

  bool is_held() const { return gathered.load() != released.load(); }
  /// Whether the rank has ended the first `gathers` uses, so that it reads nothing of them any
  /// more.
  bool has_released(uint64_t gathers) const { return released.load() >= gathers; }
};

/// A part of memory of each rank of a host, which all of them see end to end: an all-gather without
/// a copy. Each rank writes its own part; see Note [Who may touch a window]. What a rank writes
/// over the gathered whole stays with this rank, until it ends the use.
///
/// Made by Group::make_window, used through WindowLane. The memory outlives the group if the window
/// does. Destroying it is local, and ends the use; this rank's part stays as it is while a peer may
/// read it; what a fork has left behind of it in a child takes no part. Thread: the rank's.
class Window {
 public:
  /// Where a rank's part lies in its arena, and its WindowUses; kNotInArena: the rank has no room
  /// for it, or cannot use windows.
  struct Place {
    uint64_t bytes = 0;
    int64_t part = kNotInArena;
    int64_t uses = kNotInArena;
  };

  /// `places`: by rank; of the arenas of `world`, this rank's being `arena`. Takes over this rank's
  /// part. Errors: Error if it cannot be mapped; the part is free then.
  Window(int number, std::string purpose, std::vector<Place> places, std::shared_ptr<World> world,
         std::shared_ptr<Arena> arena, const Peers& peers);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  /// Bytes of each part.
  size_t bytes() const { return places_.front().bytes; }
  /// This rank's part.
  char* own() const { return part_; }
  /// All parts in rank order. Valid from WindowLane::wait to WindowLane::release.
  char* whole() const { return view_->data(); }

  int number() const { return number_; }
  /// What it is for, in errors.
  const std::string& purpose() const { return purpose_; }
  const WindowUses& uses(int rank) const;
  bool is_held() const { return uses(peers_.rank()).is_held(); }

 private:
  friend class WindowLane;
  WindowUses& own_uses() const;
  void begin_use();
  void end_use();

  // constant after construction
  const int number_;
  const std::string purpose_;
  const std::vector<Place> places_;
  const std::shared_ptr<World> world_;
  const std::shared_ptr<Arena> arena_;
  const Peers peers_;
  const pid_t process_;
  char* const part_;
  std::unique_ptr<PrivateView> view_;
};

}  // namespace fsdp::shm
