// What the fake device sees, and takes for in order.

#include "tests/unit/fsdp_runtime/streams/fake_device.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

class FakeDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_.start();
    other_.emplace(impl().getStreamFromGlobalPool(FakeDevice::device()));
  }
  void TearDown() override { device_.stop(); }

  static c10::impl::VirtualGuardImpl impl() {
    return c10::impl::VirtualGuardImpl(FakeDevice::device().type());
  }
  static c10::Stream current() { return impl().getStream(FakeDevice::device()); }
  /// The other stream waits for what the current one has been given.
  void hand_over() { order(current(), *other_); }
  /// The reverse.
  void take_back() { order(*other_, current()); }
  static void order(const c10::Stream& first, const c10::Stream& second) {
    c10::Event event(FakeDevice::device().type());
    event.record(first);
    event.block(second);
  }
  template <class Launch>
  auto on_other(Launch launch) const {
    const c10::StreamGuard guard(*other_);
    return launch();
  }
  bool is_ordered() const { return device_.races().empty(); }

  FakeDevice& device_ = FakeDevice::get();
  std::optional<c10::Stream> other_;
};

TEST_F(FakeDeviceTest, WhatOneStreamDoesIsInOrder) {
  at::Tensor tensor = at::ones({8});
  tensor.add_(1);
  EXPECT_EQ(tensor.sum().item<double>(), 16);
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
}

// Its last owner may use it on the stream on which it was allocated, without a wait.
TEST_F(FakeDeviceTest, MemoryBelongsToTheStreamOnWhichItWasAllocated) {
  const at::Tensor early = at::empty({8});
  on_other([&] { early.fill_(1); });
  EXPECT_THAT(
      device_.text_of_races(),
      HasSubstr("fill_ on a gather lane in  is not ordered behind the last owner of compute"));
}

TEST_F(FakeDeviceTest, MemoryThatIsHandedOverCanBeUsedThere) {
  const at::Tensor tensor = at::empty({8});
  hand_over();
  on_other([&] { tensor.fill_(1); });
  take_back();
  tensor.fill_(2);
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
}

TEST_F(FakeDeviceTest, AFillIsAWrite) {
  at::Tensor zeros = at::zeros({8});
  on_other([&] { return zeros.sum(); });
  EXPECT_FALSE(is_ordered());
}

TEST_F(FakeDeviceTest, AResultIsAWriteOfNewMemory) {
  const at::Tensor ones = at::ones({8});
  hand_over();
  const at::Tensor doubled = ones * 2;
  on_other([&] { return ones.sum(); });
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
  on_other([&] { return doubled.sum(); });
  EXPECT_FALSE(is_ordered());
}

// Whoever is given it next on the stream on which it was allocated writes it without a wait.
TEST_F(FakeDeviceTest, MemoryIsFreedForItsOwnStream) {
  at::Tensor tensor = at::ones({8});
  hand_over();
  on_other([&] { tensor.add_(1); });
  tensor.reset();
  EXPECT_THAT(device_.text_of_races(), HasSubstr("the next owner of compute"));
}

TEST_F(FakeDeviceTest, MemoryOfAStreamCanBeFreedBehindItsUseThere) {
  at::Tensor tensor = on_other([] { return at::ones({8}); });
  on_other([&] { tensor.add_(1); });
  tensor.reset();
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
}

TEST_F(FakeDeviceTest, AReadOfWhatNothingHasWrittenIsSeen) {
  const at::Tensor tensor = at::empty({8});
  tensor.narrow(0, 0, 3).fill_(1);
  tensor.narrow(0, 5, 3).zero_();
  tensor.narrow(0, 0, 3).sum();
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
  tensor.narrow(0, 2, 2).sum();
  EXPECT_THAT(device_.text_of_races(), HasSubstr("is not ordered behind any write"));
}

TEST_F(FakeDeviceTest, AnAdditionReadsWhatItWrites) {
  at::empty({8}).add_(1);
  EXPECT_FALSE(is_ordered());
}

TEST_F(FakeDeviceTest, AfterAllPartsAreWrittenTheWholeIs) {
  const at::Tensor tensor = at::empty({8});
  for (const int64_t begin : {4, 0, 6, 2}) {
    tensor.narrow(0, begin, 2).fill_(1);
  }
  tensor.sum();
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
}

TEST_F(FakeDeviceTest, ACopyToTheHostReadsInTheOrderOfTheStreamAndTheHostWaits) {
  const at::Tensor tensor = at::ones({8});
  hand_over();
  on_other([&] { tensor.fill_(2); });
  const int waits = device_.host_waits();
  tensor.cpu();
  EXPECT_EQ(device_.host_waits(), waits + 1);
  EXPECT_THAT(device_.text_of_races(), HasSubstr("to of compute"));
}

TEST_F(FakeDeviceTest, OnlyWaitsThatPutSomethingInOrderCount) {
  at::ones({8});
  hand_over();
  EXPECT_EQ(device_.waits().size(), 1U);
  device_.set_phase("later");
  hand_over();
  EXPECT_EQ(device_.waits().size(), 1U);
  at::ones({8});
  hand_over();
  EXPECT_EQ(device_.waits().size(), 2U);
}

}  // namespace
}  // namespace fsdp::testing
