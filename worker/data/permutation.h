#pragma once

#include <array>
#include <cstdint>

namespace fsdprun::worker {

// Note [The permutation of the global order]
// A Feistel network of eight rounds over pairs of half words, with the keys in a sequence of
// splitmix64, permutes [0, 4^h), h the least number of bits for which that is at least the size; an
// image outside of the size is permuted again until it is inside (cycle walking), which takes less
// than four times on average. So the image of an index costs no memory and depends on nothing but
// index, size and key. Checkpoints depend on these numbers: they never change
// (docs/DATA.md has them in ten lines of Python).

/// A permutation of [0, size) that follows from a key. Pure. Thread: const methods are safe from
/// many.
class IndexPermutation {
 public:
  /// Precondition: size >= 1. `seed`, `epoch` and `source` together are the key.
  IndexPermutation(int64_t size, uint64_t seed, uint64_t epoch, uint64_t source);

  /// Precondition: 0 <= index < size.
  int64_t At(int64_t index) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace fsdprun::worker
