#include "worker/data/global_order.h"

#include <utility>

#include "worker/data/permutation.h"

namespace fsdprun::worker {
namespace {

// More samples than any run takes; what is added to it cannot overflow.
constexpr int64_t kEndless = int64_t{1} << 62;

}  // namespace

GlobalOrder::GlobalOrder(Options options) : options_(std::move(options)) {
  if (!options_.weights.empty()) {
    turns_.emplace(WholeWeights(options_.weights));
  }
}

int64_t GlobalOrder::epoch_samples() const {
  return turns_ ? kEndless : options_.window_counts.front();
}

SampleRef GlobalOrder::At(const DataCursor& at) const {
  int64_t source = 0;
  DataCursor own = at;
  if (turns_) {
    const MixtureTurns::Turn turn = turns_->At(at.offset);
    const int64_t windows = options_.window_counts[static_cast<size_t>(turn.source)];
    source = turn.source;
    own = {turn.index / windows, turn.index % windows};
  }
  if (!options_.is_shuffled) {
    return {source, own.offset};
  }
  const IndexPermutation permutation(options_.window_counts[static_cast<size_t>(source)],
                                     options_.seed, static_cast<uint64_t>(own.epoch),
                                     static_cast<uint64_t>(source));
  return {source, permutation.At(own.offset)};
}

}  // namespace fsdprun::worker
