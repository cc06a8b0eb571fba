#include "launcher/chaos/plan/device_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Shares = std::vector<Environment>;

WrappedJob JobOf(int nodes, const std::string& workers = "") {
  WrappedJob job{.form = Form::kNodes, .nodes = nodes};
  if (!workers.empty()) {
    job.said.values["nproc-per-node"] = {"--nproc-per-node", workers};
  }
  return job;
}

TEST(DeviceSharesTest, TheDevicesThatAreThereAreDivided) {
  EXPECT_EQ(ShareDevices(JobOf(2, "gpu"), 8, {}).value(),
            (Shares{{{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}}, {{"CUDA_VISIBLE_DEVICES", "4,5,6,7"}}}));
  EXPECT_EQ(ShareDevices(JobOf(2), 3, {}).value(),
            (Shares{{{"CUDA_VISIBLE_DEVICES", "0"}}, {{"CUDA_VISIBLE_DEVICES", "1"}}}));
}

TEST(DeviceSharesTest, AListIsDividedAsItIs) {
  const Environment environment{{"CUDA_VISIBLE_DEVICES", "GPU-a, 3,GPU-b,1,-1"}};
  EXPECT_EQ(ShareDevices(JobOf(2, "2"), 4, environment).value(),
            (Shares{{{"CUDA_VISIBLE_DEVICES", "GPU-a,3"}}, {{"CUDA_VISIBLE_DEVICES", "GPU-b,1"}}}));
}

TEST(DeviceSharesTest, TheListOfRocmCountsToo) {
  const Environment environment{{"HIP_VISIBLE_DEVICES", "5,6"}};
  EXPECT_EQ(ShareDevices(JobOf(2), 2, environment).value(),
            (Shares{{{"HIP_VISIBLE_DEVICES", "5"}}, {{"HIP_VISIBLE_DEVICES", "6"}}}));
}

TEST(DeviceSharesTest, NodesWithoutDevicesAreLeftAsTheyAre) {
  EXPECT_THAT(ShareDevices(JobOf(2, "4"), 0, {}).value(),
              ElementsAre(Environment(), Environment()));
  EXPECT_THAT(ShareDevices(JobOf(3, "cpu"), 1, {}).value(),
              ElementsAre(Environment(), Environment(), Environment()));
}

TEST(DeviceSharesTest, TooFewAreRefusedWithWhatToDo) {
  const absl::Status status = ShareDevices(JobOf(2, "1"), 1, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("2 nodes would share 1 GPU on"),
                             HasSubstr("CUDA_VISIBLE_DEVICES= fsdprun chaos")));
}

}  // namespace
}  // namespace fsdprun::chaos
