#include "worker/data/sample_order.h"

#include <stdexcept>
#include <string>

namespace fsdprun::worker {

SampleOrder::SampleOrder(int64_t sample_count, int64_t world_size, EpochEnd end)
    : sample_count_(sample_count), world_size_(world_size), end_(end) {
  if (sample_count < 1 || world_size < 1 || (end == EpochEnd::kDrop && sample_count < world_size)) {
    throw std::invalid_argument("sample order over " + std::to_string(sample_count) +
                                " samples and " + std::to_string(world_size) + " ranks");
  }
}

DataCursor SampleOrder::Take(const DataCursor& cursor, int64_t rank) const {
  const int64_t position = cursor.offset + rank;
  const int64_t epochs = end_ == EpochEnd::kJoin ? position / sample_count_ : 0;
  return {cursor.epoch + epochs, position % sample_count_};
}

DataCursor SampleOrder::Normalize(DataCursor cursor) const {
  const int64_t needed = end_ == EpochEnd::kDrop ? world_size_ : 1;
  if (cursor.offset > sample_count_ - needed) {
    return {cursor.epoch + 1, 0};
  }
  return cursor;
}

DataCursor SampleOrder::NextRound(const DataCursor& cursor) const {
  if (end_ == EpochEnd::kJoin) {
    return Take(cursor, world_size_);
  }
  return Normalize({cursor.epoch, cursor.offset + world_size_});
}

DataCursor SampleOrder::After(int64_t rounds) const {
  if (end_ == EpochEnd::kJoin) {
    const int64_t samples = rounds * world_size_;
    return {samples / sample_count_, samples % sample_count_};
  }
  const int64_t padding = end_ == EpochEnd::kPad ? world_size_ - 1 : 0;
  const int64_t rounds_of_epoch = (sample_count_ + padding) / world_size_;
  return {rounds / rounds_of_epoch, rounds % rounds_of_epoch * world_size_};
}

}  // namespace fsdprun::worker
