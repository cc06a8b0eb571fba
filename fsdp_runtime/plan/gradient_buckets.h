#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::plan {

/// What a gradient takes of a bucket. Only gradients of one kind (a dtype) share one.
struct GradientSize {
  int64_t bytes = 0;
  int64_t kind = 0;
};

/// A bucket is full when it has this many bytes, or more by its last gradient.
struct BucketLimits {
  int64_t first_bytes = 0;  // of the first bucket of each kind
  int64_t bytes = 0;        // of the others
};

/// By bucket, its members.
using BucketMembers = std::vector<std::vector<size_t>>;

/// Divides gradients, which are expected in `order`, each named once, into buckets: in this order
/// within a bucket, and buckets in the order in which their last gradients are expected.
BucketMembers assign_buckets(const std::vector<GradientSize>& gradients,
                             const std::vector<size_t>& order, BucketLimits limits);

/// 0 to count - 1, the last first.
std::vector<size_t> reverse_order(size_t count);

/// The order for the next division of `count` gradients: as they have come, without repetition,
/// and then what has not come.
std::vector<size_t> arrival_order(const std::vector<size_t>& arrived, size_t count);

/// Which gradients of a round are in their buckets, and which buckets can be reduced: each as soon
/// as it is complete and those before it have been, so that all ranks do it in the same order.
class BucketProgress {
 public:
  explicit BucketProgress(const BucketMembers& members);

  /// A new round: nothing is there.
  void begin();
  /// Gradient `index` is in its bucket. Only once in a round.
  void add(size_t index);
  bool has(size_t index) const { return is_there_[index] != 0; }
  /// The gradients that are not there.
  std::vector<size_t> missing() const;
  bool is_complete() const { return next_ == waits_for_.size(); }
  /// The next bucket, if it is complete; it is given out once.
  std::optional<size_t> next();

 private:
  std::vector<size_t> bucket_of_;
  std::vector<size_t> sizes_;      // by bucket
  std::vector<size_t> waits_for_;  // by bucket, how many gradients are not there
  std::vector<uint8_t> is_there_;
  size_t next_ = 0;
};

}  // namespace fsdp::plan
