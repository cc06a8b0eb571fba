#pragma once

// Virtual time and seeded randomness: what makes a simulated run a pure function of its seed.

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace fsdprun::sim {

/// Nanoseconds of virtual time since the start of the run.
using Nanos = int64_t;
inline constexpr Nanos kMicro = 1000;
inline constexpr Nanos kMilli = 1000 * kMicro;
inline constexpr Nanos kSecond = 1000 * kMilli;

/// SplitMix64: small, fast, equal on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, n).
  uint64_t Below(uint64_t n) { return Next() % n; }
  /// Uniform in [low, high].
  Nanos Between(Nanos low, Nanos high) {
    return low + static_cast<Nanos>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }

 private:
  uint64_t state_;
};

enum class ItemKind : uint32_t { kNodeTimer, kJobTimer, kDeliverUp, kDeliverDown, kCall };

/// One thing that will happen. Items of equal time happen in the order in which they were pushed.
struct Item {
  Nanos at = 0;
  uint64_t sequence = 0;
  ItemKind kind = ItemKind::kCall;
  uint32_t index = 0;

  bool operator>(const Item& other) const {
    return at != other.at ? at > other.at : sequence > other.sequence;
  }
};

/// Priority queue over virtual time: a wheel of millisecond buckets, since almost everything
/// happens within seconds; only the bucket that is being drained is a heap. Thirty million beats
/// take seconds, not minutes.
class TimeQueue {
 public:
  void Push(Nanos at, ItemKind kind, uint32_t index) {
    const Item item{std::max(at, now_), next_sequence_++, kind, index};
    const int64_t bucket = item.at / kBucketNanos;
    ++size_;
    if (bucket <= current_) {
      heap_.push_back(item);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    } else if (bucket < current_ + kBuckets) {
      wheel_[bucket % kBuckets].push_back(item);
    } else {
      far_[bucket].push_back(item);
    }
  }

  /// Calls `visit` once per item of the millisecond that follows the present one, when the present
  /// one begins.
  template <class Visit>
  void LookAhead(Visit visit) {
    if (looked_ahead_ == current_) {
      return;
    }
    looked_ahead_ = current_;
    for (const Item& item : wheel_[(current_ + 1) % kBuckets]) {
      visit(item);
    }
  }

  bool empty() const { return size_ == 0; }

  /// The earliest item; the queue must not be empty.
  Item Pop() {
    while (heap_.empty()) {
      Advance();
    }
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Item item = heap_.back();
    heap_.pop_back();
    --size_;
    now_ = item.at;
    return item;
  }

 private:
  static constexpr int64_t kBuckets = 4096;
  static constexpr Nanos kBucketNanos = kMilli;

  void Advance() {
    ++current_;
    heap_.swap(wheel_[current_ % kBuckets]);
    wheel_[current_ % kBuckets].clear();
    const int64_t reachable = current_ + kBuckets - 1;
    for (auto it = far_.begin(); it != far_.end() && it->first <= reachable; it = far_.erase(it)) {
      std::vector<Item>& to = it->first == current_ ? heap_ : wheel_[it->first % kBuckets];
      to.insert(to.end(), it->second.begin(), it->second.end());
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  Nanos now_ = 0;
  int64_t current_ = 0;
  int64_t looked_ahead_ = 0;
  uint64_t next_sequence_ = 0;
  size_t size_ = 0;
  std::vector<Item> heap_;
  std::array<std::vector<Item>, kBuckets> wheel_;
  std::map<int64_t, std::vector<Item>> far_;
};

}  // namespace fsdprun::sim
