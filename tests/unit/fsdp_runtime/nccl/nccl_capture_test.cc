// Operations that become a part of a CUDA graph. To query what is captured ends the capture: so do
// the doubles.

#include <functional>
#include <memory>
#include <string>

#include "tests/unit/fsdp_runtime/nccl/nccl_ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// A capture of a stream of its own, which is the current one meanwhile.
class OwnCapture {
 public:
  explicit OwnCapture(const Collectives& group)
      : stream_(new_stream_of(group)),
        handle_(static_cast<cudaStream_t>(stream_.native_handle())),
        guard_(stream_) {
    EXPECT_EQ(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeGlobal), cudaSuccess);
  }
  /// cudaSuccess unless something has ended the capture meanwhile.
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(handle_, &graph);
  }

 private:
  const c10::Stream stream_;
  const cudaStream_t handle_;
  const c10::StreamGuard guard_;
};

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// One rank alone: a capture forbids queries to all threads of the process.
class NcclCaptureTest : public NcclTest {
 protected:
  static std::shared_ptr<Collectives> alone() {
    ProcessGroupOptions options = nccl_options(0, 1);
    options.communicates_alone = true;
    return init_process_group(options);
  }
  const std::shared_ptr<Collectives> group_ = alone();
  const at::Tensor tensor_ = on_device(*group_, 4);
};

TEST_F(NcclCaptureTest, TheWatchDoesNotQueryWhatIsCaptured) {
  nccl_.hold(0);
  const WorkPtr before = group_->all_reduce(tensor_, ReduceOp::kSum);  // so that it goes on looking
  ASSERT_TRUE(nccl_.wait_for_looks(3));
  OwnCapture capture(*group_);
  const WorkPtr captured =
      group_->all_gather_into(tensor_, tensor_, {Lane::kGather, "unit layers.0"});
  captured->wait();
  ASSERT_TRUE(nccl_.wait_for_looks(6));
  EXPECT_EQ(capture.end(), cudaSuccess);
  EXPECT_THAT(cuda_.calls(0), Contains(HasSubstr(", captured")));
  EXPECT_FALSE(before->is_done());
  nccl_.let_go();
  before->wait_on_host();
}

TEST_F(NcclCaptureTest, WhatIsCapturedIsNotInFlight) {
  nccl_.hold(0);
  OwnCapture capture(*group_);
  const WorkPtr captured = group_->all_reduce(tensor_, ReduceOp::kSum, {Lane::kReduce, "the norm"});
  EXPECT_TRUE(captured->is_done());
  captured->wait();
  EXPECT_EQ(capture.end(), cudaSuccess);
}

TEST_F(NcclCaptureTest, TheHostCannotWaitForIt) {
  OwnCapture capture(*group_);
  const WorkPtr captured = group_->all_reduce(tensor_, ReduceOp::kSum, {Lane::kReduce, "the norm"});
  captured->wait();
  EXPECT_THAT(refusal_of([&] { captured->wait_on_host(); }),
              HasSubstr("all_reduce for the norm on lane 1 is a part of a CUDA graph"));
  EXPECT_THAT(refusal_of([&] { group_->barrier(); }), HasSubstr("while a CUDA graph is captured"));
  EXPECT_EQ(capture.end(), cudaSuccess);
}

TEST_F(NcclCaptureTest, OperationsBehindACaptureAreWatchedAgain) {
  {
    OwnCapture capture(*group_);
    group_->all_reduce(tensor_, ReduceOp::kSum)->wait();
    EXPECT_EQ(capture.end(), cudaSuccess);
  }
  nccl_.hold(0);
  const WorkPtr work = group_->all_reduce(tensor_, ReduceOp::kSum);
  EXPECT_FALSE(work->is_done());
  nccl_.let_go();
  work->wait_on_host();
  EXPECT_TRUE(work->is_done());
}

}  // namespace
}  // namespace fsdp::testing
