#include "agent/process/lease.h"

#include <gtest/gtest.h>

namespace fsdprun::keeper {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLease = 32 * kSecond;  // Looked at every second.

/// When the lease ends, if the keeper wakes up as it must from `now` to `limit`; 0 if it does not.
int64_t EndAfter(Lease& lease, int64_t limit) {
  for (int64_t now = 0; (now = lease.NextLookNs()) <= limit;) {
    if (lease.Observe(now)) {
      return now;
    }
  }
  return 0;
}

TEST(LeaseTest, WithoutOneTheKeeperIsPatient) {
  Lease lease;
  EXPECT_EQ(lease.NextLookNs(), Lease::kNever);
  EXPECT_FALSE(lease.Observe(1'000'000 * kSecond));
  lease.Set(kLease, 0);
  lease.Set(0, kSecond);
  EXPECT_EQ(lease.NextLookNs(), Lease::kNever);
  EXPECT_FALSE(lease.Observe(1'000'000 * kSecond));
}

TEST(LeaseTest, EndsAfterSilenceOnly) {
  Lease lease;
  lease.Set(kLease, 100 * kSecond);
  EXPECT_EQ(EndAfter(lease, 131 * kSecond), 0);
  lease.Renew(131 * kSecond);
  EXPECT_EQ(EndAfter(lease, 1000 * kSecond), 163 * kSecond);
}

TEST(LeaseTest, FrequentWakeUpsDoNotShortenIt) {
  Lease lease;
  lease.Set(kLease, 0);
  for (int64_t ms = 0; ms < 32'000; ++ms) {
    ASSERT_FALSE(lease.Observe(ms * 1'000'000)) << ms;
  }
  EXPECT_TRUE(lease.Observe(kLease));
}

TEST(LeaseTest, APauseOfTheKeeperItselfHardlyCounts) {
  Lease lease;
  lease.Set(kLease, 0);
  EXPECT_EQ(EndAfter(lease, 10 * kSecond), 0);
  EXPECT_FALSE(lease.Observe(3600 * kSecond));
  EXPECT_EQ(EndAfter(lease, 4000 * kSecond), (3600 + 32 - 12) * kSecond);
}

}  // namespace
}  // namespace fsdprun::keeper
