#pragma once

// Virtual time and seeded randomness: what makes a simulated run a pure function of its seed.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/split_mix64.h"

namespace fsdprun::sim {

/// Nanoseconds of virtual time since the start of the run.
using Nanos = int64_t;
inline constexpr Nanos kMicro = 1000;
inline constexpr Nanos kMilli = 1000 * kMicro;
inline constexpr Nanos kSecond = 1000 * kMilli;

class Random {
 public:
  explicit Random(uint64_t seed) : numbers_(seed) {}

  uint64_t Next() { return numbers_.Next(); }
  /// Uniform in [0, n).
  uint64_t Below(uint64_t n) { return Next() % n; }
  /// Uniform in [low, high].
  Nanos Between(Nanos low, Nanos high) {
    return low + static_cast<Nanos>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }

 private:
  SplitMix64 numbers_;
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

/// Priority queue over virtual time: a wheel of short buckets, since almost everything happens
/// within a second; only the bucket that is being drained is a heap. The buckets are lists in one
/// pool of entries, so that the memory in use is that of the pending items. Sixty million events
/// take seconds, not minutes.
class TimeQueue {
 public:
  void Push(Nanos at, ItemKind kind, uint32_t index) {
    const Item item{std::max(at, now_), next_sequence_++, kind, index};
    const int64_t bucket = item.at >> kBucketBits;
    ++size_;
    if (bucket <= current_) {
      heap_.push_back(item);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    } else if (bucket < current_ + kBuckets) {
      Link(bucket, item);
    } else {
      far_[bucket].push_back(item);
    }
  }

  bool empty() const { return size_ == 0; }

  /// The earliest item; the queue must not be empty. When a bucket begins, calls
  /// `soon(item, buckets_ahead)` for the items of the two that follow.
  template <class Soon>
  Item Pop(Soon soon) {
    while (heap_.empty()) {
      Advance();
      ForEachOf(current_ + 2, [&](const Item& item) { soon(item, 2); });
      ForEachOf(current_ + 1, [&](const Item& item) { soon(item, 1); });
    }
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Item item = heap_.back();
    heap_.pop_back();
    --size_;
    now_ = item.at;
    return item;
  }

 private:
  static constexpr int kBucketBits = 18;  // 0.26 ms
  static constexpr int64_t kBuckets = 4096;
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Entry {
    Item item;
    uint32_t next = kNone;
  };

  uint32_t& Head(int64_t bucket) { return wheel_[bucket & (kBuckets - 1)]; }

  void Link(int64_t bucket, const Item& item) {
    uint32_t entry = free_;
    if (entry == kNone) {
      entry = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      free_ = entries_[entry].next;
    }
    entries_[entry] = {item, Head(bucket)};
    Head(bucket) = entry;
  }

  template <class Visit>
  void ForEachOf(int64_t bucket, Visit visit) {
    for (uint32_t entry = Head(bucket); entry != kNone; entry = entries_[entry].next) {
      visit(entries_[entry].item);
    }
  }

  void Advance() {
    ++current_;
    uint32_t entry = std::exchange(Head(current_), kNone);
    while (entry != kNone) {
      heap_.push_back(entries_[entry].item);
      const uint32_t next = std::exchange(entries_[entry].next, free_);
      free_ = std::exchange(entry, next);
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    // An item enters the wheel as soon as its bucket has a place there: before it is due.
    const int64_t reachable = current_ + kBuckets - 1;
    for (auto it = far_.begin(); it != far_.end() && it->first <= reachable; it = far_.erase(it)) {
      for (const Item& item : it->second) {
        Link(it->first, item);
      }
    }
  }

  Nanos now_ = 0;
  int64_t current_ = 0;
  uint64_t next_sequence_ = 0;
  size_t size_ = 0;
  std::vector<Item> heap_;
  std::vector<uint32_t> wheel_ = std::vector<uint32_t>(kBuckets, kNone);
  std::vector<Entry> entries_;
  uint32_t free_ = kNone;
  std::map<int64_t, std::vector<Item>> far_;
};

}  // namespace fsdprun::sim
