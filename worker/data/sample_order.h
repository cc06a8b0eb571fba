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

/// The samples of each rank: PyTorch's DistributedSampler(drop_last=False), continued over epochs
/// as one stream. A round gives each rank one sample: rank r takes position offset + r of the
/// epoch's order. Positions past the end wrap to the epoch's beginning (DistributedSampler's
/// padding), and the next round starts epoch + 1. A batch may span two epochs. When a job resumes
/// at another world size in the middle of an epoch, the rest of that epoch is distributed over the
/// new ranks: no sample is lost, and only the padding (fewer than world_size samples per epoch) is
/// repeated. Pure: no clock, no I/O, no randomness.
class SampleOrder {
 public:
  /// Precondition: sample_count >= 1, world_size >= 1.
  SampleOrder(int64_t sample_count, int64_t world_size);

  /// Position in the epoch's order that rank `rank` takes in the round at `cursor`, in [0,
  /// sample_count).
  int64_t Position(const DataCursor& cursor, int64_t rank) const;
  /// The cursor after one round.
  DataCursor NextRound(const DataCursor& cursor) const;
  /// Makes a cursor of a checkpoint valid if the data has changed in length since: past the end it
  /// becomes the start of the next epoch.
  DataCursor Normalize(DataCursor cursor) const;

 private:
  int64_t sample_count_;
  int64_t world_size_;
};

}  // namespace fsdprun::worker
