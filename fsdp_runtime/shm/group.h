#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/shm/arena.h"
#include "fsdp_runtime/shm/peers.h"
#include "fsdp_runtime/shm/reduce.h"
#include "fsdp_runtime/shm/window.h"
#include "fsdp_runtime/shm/window_lane.h"
#include "fsdp_runtime/shm/world.h"

namespace fsdp::shm {

/// One rank's membership in a World, and the collectives over it. The operations block; at most one
/// thread per lane. Every rank calls the same operations with the same arguments in the same order
/// per lane; the lanes are independent. Buffers must not be modified until the call returns.
///
/// Memory from allocate() is read by peers in place. Other memory goes through a staging ring: one
/// more copy, the same bits.
///
/// Errors: PeerLost when a peer dies or leaves, Error when one fails, issues a different operation
/// or does not arrive within the timeout. The whole group fails: every rank's current and later
/// operations throw.
class Group {
 public:
  /// `names`: what the ranks are called in errors; empty: by their numbers.
  Group(std::shared_ptr<World> world, int rank, std::chrono::milliseconds timeout,
        std::vector<int64_t> names = {});
  /// Marks this rank as gone for its peers. No operation may be running.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// What the lane's operations are for from here on: part of their names in errors, and compared
  /// across ranks like their sizes. By the lane's thread.
  void set_purpose(int lane, std::string_view purpose) { purpose_[lane] = purpose_of(purpose); }

  int rank() const { return rank_; }
  int size() const { return world_->size; }

  /// output: size() x bytes in rank order; input may be this rank's part of output.
  void all_gather(int lane, void* output, const void* input, size_t bytes);
  /// output: numel; input: size() x numel. output may be this rank's part of input, if the result
  /// is stored there.
  void reduce_scatter(int lane, void* output, const void* input, size_t numel, DType dtype,
                      ReduceOp op, Result result = Result::kStored);
  void all_reduce(int lane, void* buffer, size_t numel, DType dtype, ReduceOp op);
  void broadcast(int lane, void* buffer, size_t bytes, int root);
  void barrier(int lane);

  /// Makes a window of `bytes` per rank, a multiple of page_bytes() and the same on all ranks, or
  /// nullptr on all if one has no memory for it. `purpose`: what it is called in errors.
  /// Collective, by the lane's thread.
  std::shared_ptr<Window> make_window(int lane, size_t bytes, std::string purpose);
  /// Through which windows are used.
  const std::shared_ptr<WindowLane>& windows() const { return windows_; }

  /// Makes every rank's current and later operations throw, with `reason`: PeerLost if `lost_rank`,
  /// as this group calls it, is gone. No-op if the group has failed. Any thread.
  void abort(const std::string& reason, std::optional<int64_t> lost_rank);

  /// Memory that peers can read in place, or nullptr when the arena is exhausted. Any thread. The
  /// memory outlives the group if the pointer does.
  std::shared_ptr<void> allocate(size_t bytes);

 private:
  struct Operation;

  Operation begin(int lane, Descriptor descriptor, const void* contribution);
  void finish(const Operation& operation);
  /// Fails unless all ranks have issued the same operation.
  void check_in_step(const Operation& operation);
  /// Moves the data in `chunks` steps: stage(c) fills this rank's staging ring if it stages,
  /// consume(c) reads the peers' data.
  template <typename Stage, typename Consume>
  void run(Operation& operation, size_t chunks, Stage stage, Consume consume);
  /// Address of byte `offset` of the peer's contribution or, if it stages, of chunk `chunk`.
  const char* source(const Operation& operation, int peer, size_t offset, size_t chunk) const;
  void all_reduce_staged(int lane, void* buffer, size_t numel, DType dtype, ReduceOp op);
  Window::Place place_window(size_t bytes);
  /// Fails unless all ranks make the same window.
  bool has_place_everywhere(const std::vector<Window::Place>& places,
                            const std::string& purpose) const;
  int64_t arena_offset_of(const void* pointer) const;

  // constant after construction
  const std::shared_ptr<World> world_;
  const int rank_;
  const std::shared_ptr<Arena> arena_;
  const Peers peers_;
  const std::shared_ptr<WindowLane> windows_;

  // one thread per lane
  uint64_t sequence_[kLanes] = {};
  Purpose purpose_[kLanes] = {};
  int window_count_ = 0;  // of the lane that makes them
};

}  // namespace fsdp::shm
