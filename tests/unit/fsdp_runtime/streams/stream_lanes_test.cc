// What StreamLanes and StreamWork order, and nothing more.

#include "fsdp_runtime/src/comm/stream_lanes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/streams/fake_collectives.h"
#include "tests/unit/fsdp_runtime/streams/fake_device.h"

namespace fsdp::testing {
namespace {

class StreamLanesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_.start();
    group_ = std::make_unique<FakeCollectives>(2);
    memory_ = at::zeros({8});
  }
  void TearDown() override {
    memory_.reset();
    device_.stop();
  }

  WorkPtr write_on(Lane lane, WorkPtr after = nullptr) {
    return group_->run_on_lane({lane, "", std::move(after)}, [this] { memory_.add_(1); });
  }
  bool is_ordered() const { return device_.races().empty(); }

  FakeDevice& device_ = FakeDevice::get();
  std::unique_ptr<FakeCollectives> group_;
  at::Tensor memory_;
};

TEST_F(StreamLanesTest, LaneIsBehindWhatTheCurrentStreamHasBeenGiven) {
  memory_.fill_(3);
  write_on(Lane::kGather);
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
}

TEST_F(StreamLanesTest, CurrentStreamIsBehindTheLaneOnlyIfItWaits) {
  const WorkPtr work = write_on(Lane::kGather);
  EXPECT_FALSE(work->is_done());
  work->wait();
  memory_.fill_(3);
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
  write_on(Lane::kGather);
  memory_.fill_(4);
  EXPECT_FALSE(is_ordered());
}

TEST_F(StreamLanesTest, LanesAreOrderedByWhatIsExplicitOnly) {
  const WorkPtr first = write_on(Lane::kGather);
  const WorkPtr second = write_on(Lane::kReduce, first);
  write_on(Lane::kReduce);
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
  write_on(Lane::kGather);
  EXPECT_FALSE(is_ordered());
}

TEST_F(StreamLanesTest, LanesOfTwoGroupsAreOrderedByWhatIsExplicitOnly) {
  FakeCollectives other(2);
  const WorkPtr first = write_on(Lane::kReduce);
  other.all_reduce(memory_, ReduceOp::kSum, {Lane::kReduce, "", first});
  EXPECT_TRUE(is_ordered()) << device_.text_of_races();
  write_on(Lane::kReduce);
  EXPECT_FALSE(is_ordered());
}

TEST_F(StreamLanesTest, CurrentStreamIsTheCallersAgainBehindAStageThatThrows) {
  const WorkPtr work =
      group_->run_on_lane(Lane::kReduce, [] { TORCH_CHECK(false, "told to fail"); });
  EXPECT_EQ(device_.current(), 0);
  EXPECT_THROW(work->wait(), c10::Error);
}

TEST_F(StreamLanesTest, MemoryIsNotFreeForOthersWhileALaneUsesIt) {
  at::Tensor lent = at::zeros({8});
  const WorkPtr work = group_->all_reduce(lent, ReduceOp::kSum, Lane::kReduce);
  lent.reset();
  EXPECT_FALSE(is_ordered());
}

}  // namespace
}  // namespace fsdp::testing
