#pragma once

#include <cstdint>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// Whole numbers in the same ratio as `weights`, as small as can be. Errors: ConfigError for a
/// weight that is not above 0 or has more than six decimals, and for a sum of more than 2^21 parts.
std::vector<int64_t> WholeWeights(const std::vector<double>& weights);

// Note [Turns of a mixture]
// Sources take turns in a sequence that repeats after as many samples as their weights have parts
// in all (7 + 2 + 1 for 0.7, 0.2 and 0.1). Within it, R. Tijdeman's rule (The chairman assignment
// problem, 1980) gives every beginning of the sequence as many samples of each source as its weight
// says, but for less than one. So which source a sample is of, and which of its own samples it is,
// follow from the sample's number alone.

/// Which source each sample of a mixture is of. Pure. Memory: 10 bytes a part of the weights.
class MixtureTurns {
 public:
  /// Precondition: of WholeWeights; at most 2^15 of them.
  explicit MixtureTurns(std::vector<int64_t> weights);

  struct Turn {
    int64_t source = 0;
    /// How many samples of the source come before.
    int64_t index = 0;
  };
  /// Of sample `sample` >= 0.
  Turn At(int64_t sample) const;

 private:
  std::vector<int64_t> weights_;
  /// One period.
  std::vector<int16_t> sources_;
  std::vector<int64_t> indices_;
};

}  // namespace fsdprun::worker
