#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/shm/world.h"

namespace fsdp::shm {

/// The other ranks of a World, as one rank sees them: how it waits for them and wakes them, what
/// they are called, and how the group fails. Any thread.
///
/// Waiting ends with PeerLost when a peer dies or leaves, with Error when one fails or the timeout
/// has passed. Either fails the whole group.
class Peers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using IsReady = std::function<bool(int peer)>;

  /// What waits for peers.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    /// The operation, as errors call it.
    virtual std::string name() const = 0;
    /// How far a peer is that does not come.
    virtual std::string progress_of(int peer, const World& world) const;

    int lane = 0;
    TimePoint deadline;
  };

  /// `names`: what the ranks are called in errors; empty: by their numbers.
  Peers(std::shared_ptr<World> world, int rank, std::chrono::milliseconds timeout,
        std::vector<int64_t> names);

  int rank() const { return rank_; }
  int size() const { return world_->size; }
  const std::vector<int64_t>& names() const { return names_; }
  std::string called(int rank) const { return "rank " + std::to_string(number_of(rank)); }
  /// Of an operation that begins now.
  TimePoint deadline() const { return std::chrono::steady_clock::now() + timeout_; }

  /// Returns when is_ready(peer) holds for every peer. `phase`: what a peer does then.
  void wait(const Waiter& waiter, const char* phase, const IsReady& is_ready) const;
  /// To be called after each change that a peer may wait for on the lane.
  void wake(int lane) const;

  void throw_if_failed() const;
  /// Fails the group, with `reason` unless it has failed before, and throws why it did.
  [[noreturn]] void fail(const std::string& reason, std::optional<int64_t> lost_rank = {}) const;
  /// Fails the group, unless it has failed before. `lost_rank`: who is gone, by its name.
  void publish_failure(const std::string& reason, std::optional<int64_t> lost_rank) const;
  /// Marks this rank as gone.
  void leave() const;

 private:
  void sleep_until_woken(int lane, const std::function<bool()>& is_done) const;
  void throw_if_gone(const Waiter& waiter, const char* phase, int peer,
                     const IsReady& is_ready) const;
  void wake_all_lanes() const;
  void wait_for_reason() const;
  int64_t number_of(int rank) const;

  // constant after construction
  std::shared_ptr<World> world_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::vector<int64_t> names_;
};

}  // namespace fsdp::shm
