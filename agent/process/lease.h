#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace fsdprun::keeper {

/// How long a keeper goes on without a sign of life of its agent. Only time in which the keeper
/// itself runs counts: when the whole machine was paused, the agent gets its chance first. Pure:
/// time comes in as nanoseconds of a monotonic clock.
class Lease {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  /// 0: no lease.
  void Set(int64_t lease_ns, int64_t now_ns) {
    lease_ns_ = lease_ns;
    Renew(now_ns);
  }
  void Renew(int64_t now_ns) {
    silent_ns_ = 0;
    seen_ns_ = now_ns;
  }
  /// To be told whenever the keeper wakes up, after what it has received; true if the lease is
  /// over.
  bool Observe(int64_t now_ns) {
    silent_ns_ += std::min(now_ns - seen_ns_, 2 * TickNs());
    seen_ns_ = now_ns;
    return lease_ns_ > 0 && silent_ns_ >= lease_ns_;
  }
  /// When the keeper must wake up next on account of the lease, or kNever.
  int64_t NextLookNs() const { return lease_ns_ > 0 ? seen_ns_ + TickNs() : kNever; }

 private:
  /// Between two looks; a longer gap is a pause of the keeper.
  int64_t TickNs() const { return std::max<int64_t>(lease_ns_ / 32, 1'000'000); }

  int64_t lease_ns_ = 0;
  int64_t silent_ns_ = 0;
  int64_t seen_ns_ = 0;
};

}  // namespace fsdprun::keeper
