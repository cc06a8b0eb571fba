#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "formats/checkpoint/claim.h"

namespace fsdprun::checkpoint {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

const ClaimWatch::Time kStart{};  // of the time of the start that watches

ClaimSight Sight(const std::string& job_id, uint64_t generation, int64_t pulse) {
  ClaimSight sight;
  sight.claim.job_id = job_id;
  sight.claim.generation = generation;
  sight.claim.id = "0123456789abcdef";
  sight.pulse = pulse;
  return sight;
}

ClaimWatch Watch(const std::string& job_id, uint64_t generation, bool takes_over = false) {
  Claim mine;
  mine.job_id = job_id;
  mine.generation = generation;
  return ClaimWatch(mine, seconds(30), takes_over);
}

TEST(ClaimWatchTest, WhatNobodyHoldsIsTaken) {
  EXPECT_EQ(Watch("a", 1).Judge(std::nullopt, kStart), ClaimVerdict::kTake);
  EXPECT_EQ(Watch("a", 1).Judge(Sight("b", 1, 0), kStart), ClaimVerdict::kTake);  // released
  ClaimSight dead = Sight("b", 1, 5);
  dead.is_dead = true;
  EXPECT_EQ(Watch("a", 1).Judge(dead, kStart), ClaimVerdict::kTake);
}

TEST(ClaimWatchTest, WithinALaunchTheNewerGenerationNeverWaits) {
  for (const int64_t pulse : {0, 5}) {
    EXPECT_EQ(Watch("a", 2).Judge(Sight("a", 1, pulse), kStart), ClaimVerdict::kTake);
    EXPECT_EQ(Watch("a", 2).Judge(Sight("a", 2, pulse), kStart), ClaimVerdict::kTake);
    EXPECT_EQ(Watch("a", 1).Judge(Sight("a", 2, pulse), kStart), ClaimVerdict::kStale);
    EXPECT_EQ(Watch("a", 1, true).Judge(Sight("a", 2, pulse), kStart), ClaimVerdict::kStale);
  }
}

TEST(ClaimWatchTest, WithoutAJobIdLaunchesAreNotTheSame) {
  EXPECT_EQ(Watch("", 2).Judge(Sight("", 1, 5), kStart), ClaimVerdict::kWait);
}

TEST(ClaimWatchTest, ClaimOfAnotherLaunchIsTakenOnceNothingHasChangedForItsTimeout) {
  ClaimWatch watch = Watch("a", 1);
  for (milliseconds time{0}; time < seconds(30); time += milliseconds(250)) {
    ASSERT_EQ(watch.Judge(Sight("b", 9, 5), kStart + time), ClaimVerdict::kWait) << time.count();
  }
  EXPECT_EQ(watch.Judge(Sight("b", 9, 5), kStart + seconds(30)), ClaimVerdict::kTake);
}

TEST(ClaimWatchTest, TimeInWhichItCouldNotLookIsNoSilence) {
  ClaimWatch watch = Watch("a", 1);
  EXPECT_EQ(watch.Judge(Sight("b", 1, 5), kStart), ClaimVerdict::kWait);
  // Its process was stopped for an hour, or a look took as long.
  EXPECT_EQ(watch.Judge(Sight("b", 1, 5), kStart + hours(1)), ClaimVerdict::kWait);
  EXPECT_EQ(watch.Judge(Sight("b", 1, 6), kStart + hours(1) + seconds(1)), ClaimVerdict::kHeld);
}

TEST(ClaimWatchTest, LongerTimeoutOfHolderAndStartCounts) {
  for (const int64_t holders : {60, 1'000'000}) {
    ClaimSight sight = Sight("b", 1, 5);
    sight.claim.timeout_ms = 1000 * holders;
    ClaimWatch watch = Watch("a", 1);
    const auto timeout = std::min<milliseconds>(seconds(holders), kClaimTimeoutMax);
    for (milliseconds time{0}; time < timeout; time += LookInterval(timeout)) {
      ASSERT_EQ(watch.Judge(sight, kStart + time), ClaimVerdict::kWait) << time.count();
    }
    EXPECT_EQ(watch.Judge(sight, kStart + timeout), ClaimVerdict::kTake);
  }
  Claim shorter;
  shorter.timeout_ms = 1;
  EXPECT_EQ(Watch("a", 1).TimeoutFor(shorter), seconds(30));
}

TEST(ClaimWatchTest, ClaimThatShowsLifeIsHeldWhateverTheTimesSay) {
  // The holder's clock may be ahead, behind, or be set back.
  for (const int64_t pulse : {1, 4, 6, 1'000'000'000}) {
    ClaimWatch watch = Watch("a", 1);
    EXPECT_EQ(watch.Judge(Sight("b", 1, 5), kStart), ClaimVerdict::kWait);
    EXPECT_EQ(watch.Judge(Sight("b", 1, pulse), kStart + seconds(31)), ClaimVerdict::kHeld);
  }
}

TEST(ClaimWatchTest, WhileItWaitsTheClaimMayBeReleasedOrTakenByAThird) {
  ClaimWatch watch = Watch("a", 1);
  EXPECT_EQ(watch.Judge(Sight("b", 1, 5), kStart), ClaimVerdict::kWait);
  EXPECT_EQ(watch.Judge(Sight("b", 1, 0), kStart + seconds(1)), ClaimVerdict::kTake);
  ClaimSight third = Sight("c", 1, 5);
  third.claim.id = "another";
  EXPECT_EQ(watch.Judge(third, kStart + seconds(1)), ClaimVerdict::kHeld);
}

TEST(ClaimWatchTest, TakeoverDoesNotWait) {
  EXPECT_EQ(Watch("a", 1, true).Judge(Sight("b", 1, 5), kStart), ClaimVerdict::kTake);
}

}  // namespace
}  // namespace fsdprun::checkpoint
