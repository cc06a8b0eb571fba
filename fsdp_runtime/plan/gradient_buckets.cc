#include "fsdp_runtime/plan/gradient_buckets.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace fsdp::plan {

BucketMembers assign_buckets(const std::vector<GradientSize>& gradients,
                             const std::vector<size_t>& order, BucketLimits limits) {
  struct Bucket {
    std::vector<size_t> members;
    int64_t bytes = 0;
    size_t last_position = 0;  // in `order`
  };
  std::vector<Bucket> full;
  std::map<int64_t, Bucket> open;
  std::map<int64_t, int64_t> limit_of;
  for (size_t position = 0; position < order.size(); ++position) {
    const GradientSize& gradient = gradients[order[position]];
    Bucket& bucket = open[gradient.kind];
    bucket.members.push_back(order[position]);
    bucket.bytes += gradient.bytes;
    bucket.last_position = position;
    int64_t& limit = limit_of.try_emplace(gradient.kind, limits.first_bytes).first->second;
    if (bucket.bytes >= limit) {
      full.push_back(std::exchange(bucket, {}));
      limit = limits.bytes;
    }
  }
  for (auto& [kind, bucket] : open) {
    if (!bucket.members.empty()) {
      full.push_back(std::move(bucket));
    }
  }
  std::sort(full.begin(), full.end(),
            [](const Bucket& a, const Bucket& b) { return a.last_position < b.last_position; });
  BucketMembers members;
  members.reserve(full.size());
  for (Bucket& bucket : full) {
    members.push_back(std::move(bucket.members));
  }
  return members;
}

std::vector<size_t> reverse_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.rbegin(), order.rend(), size_t{0});
  return order;
}

std::vector<size_t> arrival_order(const std::vector<size_t>& arrived, size_t count) {
  std::vector<uint8_t> is_listed(count, 0);
  std::vector<size_t> order;
  const auto list = [&](size_t index) {
    if (is_listed[index] == 0) {
      is_listed[index] = 1;
      order.push_back(index);
    }
  };
  // Where one has come several times, the last time counts: before that it was not complete.
  std::for_each(arrived.rbegin(), arrived.rend(), list);
  std::reverse(order.begin(), order.end());
  for (size_t index = 0; index < count; ++index) {
    list(index);
  }
  return order;
}

BucketProgress::BucketProgress(const BucketMembers& members) {
  for (size_t bucket = 0; bucket < members.size(); ++bucket) {
    sizes_.push_back(members[bucket].size());
    for (const size_t index : members[bucket]) {
      bucket_of_.resize(std::max(bucket_of_.size(), index + 1));
      bucket_of_[index] = bucket;
    }
  }
  begin();
}

void BucketProgress::begin() {
  waits_for_ = sizes_;
  is_there_.assign(bucket_of_.size(), 0);
  next_ = 0;
}

void BucketProgress::add(size_t index) {
  is_there_[index] = 1;
  --waits_for_[bucket_of_[index]];
}

std::vector<size_t> BucketProgress::missing() const {
  std::vector<size_t> missing;
  for (size_t index = 0; index < is_there_.size(); ++index) {
    if (is_there_[index] == 0) {
      missing.push_back(index);
    }
  }
  return missing;
}

std::optional<size_t> BucketProgress::next() {
  if (is_complete() || waits_for_[next_] != 0) {
    return std::nullopt;
  }
  return next_++;
}

}  // namespace fsdp::plan
