// What a group on a device does when an operation does not end. No device is needed: operations and
// communicators are stand-ins.

#include "fsdp_runtime/src/comm/device_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/unit/fsdp_runtime/comm/device_stand_ins.h"
#include "tests/unit/fsdp_runtime/comm/linked.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::Device;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Journal;
using testing::kQuick;

TEST(DeviceWatchTest, WhatTakesTooLongIsNamedAndEndsEverything) {
  Journal journal;
  const Device device(journal);
  DeviceWatch watch(device.place(milliseconds(20)), device.communicators, kQuick);
  device.launch(watch, "all_gather for unit a on lane 0");
  const std::optional<GroupFailure> failure = watch.wait();
  ASSERT_TRUE(failure.has_value());
  EXPECT_THAT(failure->reason, AllOf(HasSubstr("all_gather for unit a on lane 0 has not ended"),
                                     HasSubstr("of rank 1 within 20 ms")));
  EXPECT_FALSE(failure->lost_rank.has_value());
  journal.wait_for("a aborted");
}

TEST(DeviceWatchTest, WhatTheLibraryNoticesIsAnErrorOfWhatIsInFlight) {
  Journal journal;
  const Device device(journal);
  DeviceWatch watch(device.place(), device.communicators, kQuick);
  device.launch(watch, "reduce_scatter for unit b on lane 1");
  device.communicators->has_error = true;
  EXPECT_EQ(watch.wait()->reason, "reduce_scatter for unit b on lane 1: the network is down");
}

TEST(DeviceWatchTest, ALostPeerEndsWhatIsInFlight) {
  Journal journal;
  const Device device(journal);
  DeviceWatch watch(device.place(), device.communicators, kQuick);
  device.launch(watch, "all_gather");
  device.membership->revoke({"rank 3 died", 3});
  EXPECT_EQ(watch.wait()->lost_rank, 3);
}

// Its peers' kernels may wait for what it would have launched next.
TEST(DeviceWatchTest, WhoLeavesBecauseOfAnExceptionTellsItAtOnceAndDoesNotFreeWithThePeers) {
  Journal journal;
  const Device device(journal);
  try {
    DeviceWatch watch(device.place(), device.communicators, kQuick);
    throw std::runtime_error("the data loader failed");
  } catch (const std::runtime_error&) {
    const std::optional<GroupFailure> failure = device.membership->failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->lost_rank, 1);
    EXPECT_THAT(failure->reason, HasSubstr("rank 1 left the group because of an error"));
  }
  EXPECT_THAT(journal.entries(), ElementsAre("a revoked", "a aborted"));
}

TEST(DeviceWatchTest, AGroupThatIsMadeAndLeftWhileAnExceptionIsHandledEndsInOrder) {
  Journal journal;
  const Device device(journal);
  struct Cleaner {
    ~Cleaner() { DeviceWatch watch(device.place(), device.communicators, kQuick); }
    const Device& device;
  };
  try {
    const Cleaner cleaner{device};
    throw std::runtime_error("the data loader failed");
  } catch (const std::runtime_error&) {
    EXPECT_FALSE(device.membership->failure().has_value());
  }
  EXPECT_THAT(journal.entries(), ElementsAre("a shut down"));
}

// It has ended in order, but before the others: what they launch does not end.
TEST(DeviceWatchTest, WhoHasLeftIsNamedByThoseThatStillWait) {
  auto links = testing::linked(2);
  Journal journal;
  Device device(journal);
  device.membership->connect(std::move(links[1]));
  auto peer = std::make_unique<Membership>(0);
  peer->connect(std::move(links[0]));
  constexpr DeviceWatch::Pace kPace{milliseconds(1), std::chrono::minutes(10), milliseconds(20)};
  DeviceWatch watch(device.place(), device.communicators, kPace);
  device.launch(watch, "all_gather for unit a");
  peer.reset();
  const std::optional<GroupFailure> failure = watch.wait();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->lost_rank, 0);
  EXPECT_EQ(failure->reason, "rank 0 left the group before all_gather for unit a had ended");
}

// Freeing one communicator may wait for a kernel of another. The second is revoked late, so that a
// thread which frees the first at once would have done so.
TEST(DeviceWatchTest, AllCommunicatorsAreRevokedBeforeOneIsFreed) {
  Journal journal;
  const Device first(journal, "a");
  Device second(journal, "b");
  second.membership = first.membership;
  second.communicators->on_revoke = [&] { journal.wait_for("a aborted", milliseconds(50)); };
  DeviceWatch of_first(first.place(), first.communicators, kQuick);
  DeviceWatch of_second(second.place(), second.communicators, kQuick);
  first.membership->revoke({"rank 3 died", 3});
  journal.wait_for("a aborted");
  journal.wait_for("b aborted");
  const std::vector<std::string> entries = journal.entries();
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_THAT((std::vector(entries.begin(), entries.begin() + 2)),
              ElementsAre("a revoked", "b revoked"));
}

// The same for a group that is left while another rank's failure makes its way through the groups.
TEST(DeviceWatchTest, WhoLeavesDuringAFailureFreesNothingBeforeAllIsRevoked) {
  Journal journal;
  const Device first(journal, "a");
  Device second(journal, "b");
  second.membership = first.membership;
  second.communicators->on_revoke = [&] {
    journal.write("b is being revoked");
    journal.wait_for("a aborted", milliseconds(50));
  };
  const DeviceWatch of_second(second.place(), second.communicators, kQuick);  // hears of it first
  auto of_first = std::make_unique<DeviceWatch>(first.place(), first.communicators, kQuick);
  std::thread failure([&] { first.membership->revoke({"rank 3 died", 3}); });
  journal.wait_for("b is being revoked");
  of_first.reset();
  failure.join();
  const std::vector<std::string> entries = journal.entries();
  EXPECT_LT(std::find(entries.begin(), entries.end(), "b revoked"),
            std::find(entries.begin(), entries.end(), "a aborted"));
}

TEST(DeviceWatchTest, CommunicatorsThatCannotBeFreedAreLeftBehind) {
  Journal journal;
  std::promise<void> release;
  const Device device(journal);
  device.communicators->hangs = release.get_future().share();
  {
    DeviceWatch watch(device.place(), device.communicators, {milliseconds(1), milliseconds(20)});
    device.membership->revoke({"rank 3 died", 3});
  }
  EXPECT_THAT(journal.entries(),
              ElementsAre("a revoked", ::testing::StartsWith("a warns: communicators of group")));
  release.set_value();
  journal.wait_for("a aborted");
}

TEST(DeviceWatchTest, OrderlyEndWaitsForWhatIsInFlightAndFreesWithThePeers) {
  Journal journal;
  const Device device(journal);
  std::atomic<int> looks{0};
  {
    DeviceWatch watch(device.place(), device.communicators, kQuick);
    watch.add("all_gather", [&] { return ++looks > 20; });
  }
  EXPECT_GT(looks, 20);
  EXPECT_THAT(journal.entries(), ElementsAre("a shut down"));
}

// The peers take part in an orderly end, which would otherwise last as long as it may.
TEST(DeviceWatchTest, ADeathDuringTheOrderlyEndEndsIt) {
  Journal journal;
  std::promise<void> release;
  const Device device(journal);
  device.communicators->waits_for_peers = release.get_future().share();
  std::thread death([&] {
    journal.wait_for("a shutting down");
    device.membership->revoke({"rank 3 died", 3});
  });
  { DeviceWatch watch(device.place(), device.communicators, kQuick); }
  death.join();
  EXPECT_THAT(journal.entries(), ::testing::Contains("a aborted"));
  release.set_value();
  journal.wait_for("a shut down");
}

TEST(DeviceWatchTest, AGroupThatComesAfterTheFailureHasFailed) {
  Journal journal;
  const Device device(journal);
  device.membership->revoke({"rank 3 died", 3});
  DeviceWatch watch(device.place(), device.communicators, kQuick);
  EXPECT_EQ(watch.wait()->reason, "rank 3 died");
  journal.wait_for("a aborted");
}

TEST(DeviceWatchTest, WhatGoesWrongAtTheEndIsAWarning) {
  for (const bool is_orderly : {true, false}) {
    Journal journal;
    const Device device(journal);
    device.communicators->on_end = [] { throw std::runtime_error("the driver is gone"); };
    if (!is_orderly) {
      device.membership->revoke({"rank 3 died", 3});
    }
    { DeviceWatch watch(device.place(), device.communicators, kQuick); }
    EXPECT_THAT(journal.entries(),
                ::testing::Contains("a warns: ending the communicators of group 'world': the "
                                    "driver is gone"));
  }
}

TEST(CallWithinTest, SaysWhetherTheCallHasEnded) {
  EXPECT_TRUE(call_within(std::chrono::minutes(10), [] {}));
  std::promise<void> release;
  std::promise<void> ended;
  EXPECT_FALSE(call_within(milliseconds(1), [&] {
    release.get_future().wait();
    ended.set_value();
  }));
  release.set_value();
  ended.get_future().wait();
}

}  // namespace
}  // namespace fsdp
