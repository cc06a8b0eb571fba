#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/data/mixture.h"
#include "worker/data/sample_order.h"

namespace fsdprun::worker {

/// A window of one of the sources that are trained on.
struct SampleRef {
  int64_t source = 0;
  int64_t window = 0;
  bool operator==(const SampleRef&) const = default;
};

// Note [The global order]
// Which sample is the k-th of a run follows from k, the seed, the number of windows of each source
// and their weights; not from the number of ranks. Batch b of G samples is samples [b * G, (b + 1)
// * G), so a run that goes on at another world size with the same G takes the same batches, and
// with another one continues with the first sample that nobody has taken. No epoch is padded: the
// next follows at once.

/// The window of each sample of a run. Pure. Memory: none to speak of, unless the sources have
/// weights (MixtureTurns).
class GlobalOrder {
 public:
  struct Options {
    /// Windows of each source, each >= 1.
    std::vector<int64_t> window_counts;
    /// Of each source; empty: there is one. Errors: as WholeWeights's.
    std::vector<double> weights;
    bool is_shuffled = false;
    uint64_t seed = 0;
  };
  explicit GlobalOrder(Options options);

  /// Of SampleOrder: one source has epochs; a mixture has none, because each source has its own.
  int64_t epoch_samples() const;
  /// The window of the sample at position `at.offset` of epoch `at.epoch`.
  SampleRef At(const DataCursor& at) const;

 private:
  Options options_;
  std::optional<MixtureTurns> turns_;
};

}  // namespace fsdprun::worker
