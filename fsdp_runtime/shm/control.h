#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fsdp_runtime/shm/descriptor.h"

namespace fsdp::shm {

inline constexpr int kLanes = 2;
/// The gathers of windows: no thread of its own, and no staging.
inline constexpr int kWindowLane = kLanes;
inline constexpr int kAllLanes = kLanes + 1;
inline constexpr uint64_t kMagic = 0x6d68735f70647366;  // "fsdp_shm"
inline constexpr uint32_t kLayoutVersion = 5;
inline constexpr int kRanksMax = 256;
/// So many gathers of windows may be in flight.
inline constexpr uint64_t kWindowDescriptors = 16;

/// Staged transfers go through a ring of this many chunks per rank and lane.
inline constexpr size_t kStagingChunks = 4;
inline constexpr size_t kStagingChunkBytes = 256 * 1024;

// Note [Sequence numbers of a lane]
// Every rank counts the operations of a lane: 1, 2, 3, ... Operation s proceeds as follows:
//   1. write `descriptor`, posted = s          (my contribution can be read)
//   2. wait until every peer has posted >= s
//   3. move data; through the staging ring: produced and consumed = progress(s, chunks)
//   4. done = s; wait until every peer has done >= s   (no peer reads my contribution any more)
// A rank cannot write the descriptor of s + 1 before all peers have done s, so one descriptor per
// rank and lane is enough, and a ring's chunk is free again once every peer has consumed it.

/// Staged progress of operation `sequence`, comparable across operations.
inline constexpr uint64_t progress(uint64_t sequence, uint64_t chunks) {
  return (sequence << 24) | chunks;
}
inline constexpr uint64_t kChunksMax = (uint64_t{1} << 24) - 1;

/// The state of one rank in one lane. Written by its owner, except the doorbell. In the window lane
/// without what is for the data: its descriptors are in Control.
struct Slot {
  alignas(64) std::atomic<uint64_t> posted;
  std::atomic<uint64_t> done;
  Descriptor descriptor;  // published by `posted`
  alignas(64) std::atomic<uint64_t> produced;
  std::atomic<uint64_t> consumed;
  /// Futex on which the owner sleeps; incremented by peers after each change of their state.
  alignas(64) std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleepers;  // threads of the owner
};

struct RankState {
  alignas(64) std::atomic<uint32_t> left;
};

/// Start of the control mapping; the staging rings follow at staging_offset().
struct Control {
  uint64_t magic;
  uint32_t version;
  uint32_t world_size;
  uint64_t nonce;
  /// 0 until the group fails. The first failing rank stores 1 + its rank, then the reason, then
  /// is_reason_written; only then may other ranks read the failure.
  alignas(64) std::atomic<uint32_t> failed_rank;
  std::atomic<uint32_t> is_reason_written;
  std::atomic<uint32_t> lost_rank;  // 1 + what the group calls the rank that is gone; 0: none is
  std::array<char, 1024> reason;
  RankState ranks[kRanksMax];
  Slot slots[kAllLanes][kRanksMax];
  /// Of the window lane, gather s at s % kWindowDescriptors; published by the slot's `posted`.
  Descriptor gathers[kRanksMax][kWindowDescriptors];
};

inline constexpr size_t staging_offset() { return (sizeof(Control) + 4095) / 4096 * 4096; }
inline constexpr size_t staging_ring_bytes() { return kStagingChunks * kStagingChunkBytes; }
inline constexpr size_t control_bytes(int world_size) {
  return staging_offset() + static_cast<size_t>(world_size) * kLanes * staging_ring_bytes();
}

}  // namespace fsdp::shm
