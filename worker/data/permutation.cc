#include "worker/data/permutation.h"

#include <algorithm>
#include <bit>

namespace fsdprun::worker {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

/// The output function of splitmix64 (Steele, Lea, Flood, 2014).
uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

IndexPermutation::IndexPermutation(int64_t size, uint64_t seed, uint64_t epoch, uint64_t source)
    : size_(static_cast<uint64_t>(size)),
      half_bits_(std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2)) {
  uint64_t state = Mix(Mix(Mix(seed + kGolden) + epoch + kGolden) + source + kGolden);
  for (uint64_t& key : keys_) {
    state += kGolden;
    key = Mix(state);
  }
}

int64_t IndexPermutation::At(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (Mix(right + key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace fsdprun::worker
