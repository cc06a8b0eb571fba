#pragma once

#include <cstdint>
#include <vector>

namespace fsdprun::worker {

/// Position in the endless sequence of samples: how many positions of the current epoch's order the
/// whole job (all ranks together) has consumed. Independent of ranks, so a job can resume from it
/// at any world size.
struct DataCursor {
  int64_t epoch = 0;
  int64_t offset = 0;
  bool operator==(const DataCursor&) const = default;
};

/// What follows the last whole round of an epoch.
enum class EpochEnd {
  /// A round that is filled up from the epoch's beginning: DistributedSampler(drop_last=False).
  kPad,
  /// Nothing: DistributedSampler(drop_last=True).
  kDrop,
  /// A round that begins the next epoch. Every sample comes once an epoch at any world size.
  kJoin,
};

/// The samples of each rank, continued over epochs as one stream. A round gives each rank one
/// sample: rank r takes position offset + r of the epoch's order. A batch may span two epochs.
/// When a job resumes at another world size in the middle of an epoch, the rest of that epoch is
/// distributed over the new ranks: no sample is lost, and only what kPad repeats (fewer than
/// world_size samples per epoch) is repeated, or what kDrop leaves out is left out. Pure: no clock,
/// no I/O, no randomness.
class SampleOrder {
 public:
  /// Precondition: sample_count >= 1, world_size >= 1; with kDrop, sample_count >= world_size.
  SampleOrder(int64_t sample_count, int64_t world_size, EpochEnd end = EpochEnd::kPad);

  /// Epoch and position in its order, in [0, sample_count), that rank `rank` takes in the round at
  /// `cursor`.
  DataCursor Take(const DataCursor& cursor, int64_t rank) const;
  /// The cursor after one round.
  DataCursor NextRound(const DataCursor& cursor) const;
  /// The cursor after the first `rounds` rounds. Precondition: their samples can be counted.
  DataCursor After(int64_t rounds) const;
  /// Makes a cursor of a checkpoint valid if the data has changed in length since: past the end it
  /// becomes the start of the next epoch.
  DataCursor Normalize(DataCursor cursor) const;

 private:
  int64_t sample_count_;
  int64_t world_size_;
  EpochEnd end_;
};

}  // namespace fsdprun::worker
