// In which order a snapshot is copied, on a fake device.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/on_a_fake_device.h"
#include "worker/checkpoint/snapshot.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::testing::FakeDevice;

std::optional<c10::Device> DeviceOf(const at::Tensor& tensor) {
  const auto* begin = static_cast<const char*>(tensor.storage().data());
  return FakeDevice::get().is_on_host(begin) ? std::nullopt : std::optional(FakeDevice::device());
}

class StagingOrderTest : public fsdp::testing::OnAFakeDevice {
 protected:
  /// What training computes, a save copies, and training overwrites; twice, with the same buffers.
  void SaveTwice() {
    for (const double value : {1.0, 2.0}) {
      weight_.fill_(value);
      step_.fill_(value);
      Snapshot snapshot;
      snapshot.host = {weight_, step_};
      staging_.Mark(snapshot);
      staging_.Copy(snapshot);
      weight_.zero_();  // the optimizer's next step
      step_.zero_();
      ASSERT_EQ(snapshot.host.size(), 2u);
      for (const at::Tensor& copy : snapshot.host) {
        EXPECT_TRUE(device_.is_pinned(static_cast<const char*>(copy.const_data_ptr())));
        EXPECT_TRUE(copy.eq(value).all().item<bool>());
      }
      EXPECT_EQ(snapshot.host[0].sizes(), weight_.sizes());
      EXPECT_EQ(snapshot.host[1].dim(), 0);
    }
  }

  Staging staging_{DeviceOf};
  at::Tensor weight_ = at::empty({3, 5}, at::kBFloat16);
  at::Tensor step_ = at::empty({}, at::kFloat);
};

TEST_F(StagingOrderTest, CopyIsAfterWhatWasComputedAndBeforeWhatFollows) {
  SaveTwice();
  EXPECT_EQ(device_.text_of_races(), "");
}

TEST_F(StagingOrderTest, WithoutItsWaitsItWouldNotBe) {
  device_.leave_out_waits([](const FakeDevice::Wait&) { return true; });
  SaveTwice();
  EXPECT_THAT(device_.text_of_races(), testing::HasSubstr("copy_"));
}

}  // namespace
}  // namespace fsdprun::checkpoint
