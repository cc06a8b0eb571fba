// What a group on a device throws. No device is needed: operations and communicators are stand-ins.

#include "fsdp_runtime/src/comm/device_operation.h"

#include <c10/util/Exception.h>
#include <fsdp/collectives.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/unit/fsdp_runtime/comm/device_stand_ins.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::Device;
using ::testing::HasSubstr;
using testing::Journal;
using testing::kQuick;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(DeviceOperationTest, TheFirstFailureIsThatOfWhateverComesLater) {
  Journal journal;
  const Device device(journal);
  DeviceWatch watch(device.place(milliseconds(20)), device.communicators, kQuick);
  device.launch(watch, "all_gather for unit a on lane 0");
  EXPECT_THAT(
      error_of([&] { wait_for_launched(device.place(), watch, "barrier on lane 1"); }),
      AllOf(HasSubstr("barrier on lane 1 on rank 1"),
            HasSubstr("all_gather for unit a on lane 0 has not ended"), HasSubstr("within 20 ms")));
  EXPECT_THAT(error_of([&] { check_groups(device.place(), "all_reduce"); }),
              HasSubstr("all_reduce on rank 1"));
}

// As a communicator that the library has found broken, or that has been aborted meanwhile.
TEST(DeviceOperationTest, WhatCannotBeLaunchedFailsAllGroups) {
  Journal journal;
  const Device device(journal);
  DeviceWatch watch(device.place(), device.communicators, kQuick);
  const auto launch = [] { TORCH_CHECK(false, "NCCL error: remote process exited"); };
  EXPECT_THAT(
      error_of([&] { launch_operation(device.place(), "all_gather for unit a", launch); }),
      AllOf(HasSubstr("all_gather for unit a on rank 1"), HasSubstr("remote process exited")));
  EXPECT_THAT(device.membership->failure()->reason, HasSubstr("remote process exited"));
}

TEST(DeviceOperationTest, WhatCannotBeLaunchedBecauseOfADeathIsAnErrorOfAVictim) {
  Journal journal;
  const Device device(journal);
  DeviceWatch watch(device.place(), device.communicators, kQuick);
  const auto launch = [&] {
    device.membership->revoke({"rank 3 died", 3});
    TORCH_CHECK(false, "NCCL error: the communicator was aborted");
  };
  try {
    launch_operation(device.place(), "all_gather", launch);
    FAIL() << "it was launched";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank, 3);
  }
}

// A library that waits for a peer that has died before it came to it.
TEST(FormWithinTest, ALostPeerEndsTheWaitForIt) {
  Journal journal;
  const Device device(journal);
  const auto release = std::make_shared<std::promise<void>>();
  std::thread links([&] { device.membership->revoke({"rank 3 died", 3}); });
  try {
    form_within(device.place(), [release] { release->get_future().wait(); });
    FAIL() << "it does not end";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank, 3);
    EXPECT_THAT(error.what(), HasSubstr("forming the group on rank 1"));
  }
  links.join();
  release->set_value();
}

TEST(FormWithinTest, TheTimeoutOfTheGroupIsItsBound) {
  Journal journal;
  const Device device(journal);
  const auto release = std::make_shared<std::promise<void>>();
  const auto call = [release] { release->get_future().wait(); };
  EXPECT_THAT(error_of([&] { form_within(device.place(milliseconds(20)), call); }),
              HasSubstr("rank 1 has waited for its peers for 20 ms"));
  EXPECT_TRUE(device.membership->failure().has_value()) << "the others hear of it, too";
  release->set_value();
}

TEST(FormWithinTest, AnErrorOfTheLibraryIsThatOfAllRanks) {
  Journal journal;
  const Device device(journal);
  bool has_run = false;
  form_within(device.place(), [&] { has_run = true; });
  EXPECT_TRUE(has_run);
  EXPECT_THAT(
      error_of([&] { form_within(device.place(), [] { TORCH_CHECK(false, "no network"); }); }),
      HasSubstr("no network"));
  EXPECT_THAT(device.membership->failure()->reason, HasSubstr("no network"));
}

}  // namespace
}  // namespace fsdp
