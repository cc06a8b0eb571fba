#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

// Note [Digest of weights]
// Whether two folders, or files of different dtypes and divisions, have the same weights is told by
// their values in float32: of each weight the sum of its elements' bits, and the sum of these times
// their places, from 1, both modulo 2^64. Sums of parts can be added, so ranks that have parts of
// the weights need to exchange sums alone, and it does not matter who has which. It tells apart
// what differs by accident, not what was made to collide.

/// Of one weight, or of a part of it.
struct WeightSums {
  uint64_t bits = 0;
  uint64_t bits_by_place = 0;

  /// Adds elements of the weight, in row-major order, of which the first is number `begin`.
  void Add(int64_t begin, const float* values, int64_t count);
  void Add(const WeightSums& part) {
    bits += part.bits;
    bits_by_place += part.bits_by_place;
  }
};

/// 16 hexadecimal digits. `sums`: of each weight, by its name in the model.
std::string DigestOfSums(const std::map<std::string, WeightSums>& sums);

/// The same of weights in files; `weights`: their names in `source` by those in the model. Reads
/// all of them. Errors: fsdp::archive::Error on a dtype that is not castable to float32; those of
/// the source.
std::string DigestOfWeights(TensorSource& source,
                            const std::map<std::string, std::string>& weights);

}  // namespace fsdprun
