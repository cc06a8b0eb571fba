#include "worker/data/sample_order.h"

#include <stdexcept>
#include <string>

namespace fsdprun::worker {

SampleOrder::SampleOrder(int64_t sample_count, int64_t world_size)
    : sample_count_(sample_count), world_size_(world_size) {
  if (sample_count < 1 || world_size < 1) {
    throw std::invalid_argument("sample order over " + std::to_string(sample_count) +
                                " samples and " + std::to_string(world_size) + " ranks");
  }
}

int64_t SampleOrder::Position(const DataCursor& cursor, int64_t rank) const {
  return (cursor.offset + rank) % sample_count_;
}

DataCursor SampleOrder::Normalize(DataCursor cursor) const {
  if (cursor.offset >= sample_count_) {
    return {cursor.epoch + 1, 0};
  }
  return cursor;
}

DataCursor SampleOrder::NextRound(const DataCursor& cursor) const {
  return Normalize({cursor.epoch, cursor.offset + world_size_});
}

}  // namespace fsdprun::worker
