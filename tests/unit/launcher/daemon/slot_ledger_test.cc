#include "launcher/daemon/slot_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string MessageOf(const absl::StatusOr<std::vector<std::string>>& taken) {
  return std::string(taken.status().message());
}

TEST(SlotLedgerTest, MoreThanThereIsIsAnotherErrorThanMoreThanIsFree) {
  SlotLedger ledger("node0", 2, {});
  EXPECT_TRUE(absl::IsOutOfRange(ledger.Take("s", "job a", 3).status()));
  EXPECT_TRUE(ledger.Take("s", "job a", 1).ok());
  const auto refused = ledger.Take("t", "job b", 2);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(MessageOf(refused), HasSubstr("node0 has 2 slots, of which 1 is free, and 2 are "
                                            "needed: 1 slot by job a; "));
  EXPECT_EQ(ledger.free_slots(), 1);
}

TEST(SlotLedgerTest, ARefusalNamesAllUsersButNotWithoutEnd) {
  SlotLedger ledger("n", 20, {});
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(ledger.Take("s" + std::to_string(i), "job", 1).ok());
  }
  EXPECT_THAT(MessageOf(ledger.Take("t", "late", 1)), HasSubstr("and by 4 more jobs"));
}

TEST(SlotLedgerTest, EachDeviceIsOneSessions) {
  SlotLedger ledger("n", 3, {"4", "GPU-b", "6"});
  EXPECT_THAT(ledger.Take("a", "job a", 2).value(), ElementsAre("4", "GPU-b"));
  EXPECT_THAT(ledger.Take("b", "job b", 1).value(), ElementsAre("6"));
  EXPECT_THAT(MessageOf(ledger.Take("c", "job c", 1)),
              HasSubstr("2 slots (devices 4,GPU-b) by job a, 1 slot (devices 6) by job b"));
  ledger.Free("a");
  ledger.Free("a");
  EXPECT_EQ(ledger.free_slots(), 2);
  EXPECT_THAT(ledger.Take("c", "job c", 1).value(), ElementsAre("4"));
}

TEST(SlotLedgerTest, ASessionHasAtMostADeviceForEachSlot) {
  EXPECT_EQ(SlotLedger("n", 3, {"4", "GPU-b", "6"}).most_devices(), 3);
  EXPECT_EQ(SlotLedger("n", 2, {"4", "GPU-b", "6"}).most_devices(), 2);
}

TEST(SlotLedgerTest, WithoutDevicesThereAreNone) {
  SlotLedger ledger("n", 3, {});
  EXPECT_EQ(ledger.most_devices(), 0);
  EXPECT_THAT(ledger.Take("a", "job a", 2).value(), IsEmpty());
}

TEST(SlotLedgerTest, WhatAnEarlierDaemonHasGivenStaysTaken) {
  SlotLedger ledger("n", 2, {"0", "1"});
  ledger.Restore("a", "job a", 3, {"1", "7"});
  EXPECT_EQ(ledger.free_slots(), 0);
  EXPECT_FALSE(ledger.Take("b", "job b", 1).ok());
  ledger.Free("a");
  ledger.Restore("a", "job a", 1, {"0"});
  EXPECT_THAT(ledger.Take("b", "job b", 1).value(), ElementsAre("1"));
}

}  // namespace
}  // namespace fsdprun
