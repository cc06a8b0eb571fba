// Operations that become a part of a CUDA graph. To query what is captured ends the capture: so do
// the doubles.

#include <c10/core/Event.h>

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
  ~OwnCapture() {
    if (!has_ended_) {
      end();
    }
  }
  OwnCapture(const OwnCapture&) = delete;
  OwnCapture& operator=(const OwnCapture&) = delete;

  /// cudaSuccess unless something has spoilt the capture meanwhile.
  cudaError_t end() {
    has_ended_ = true;
    cudaGraph_t graph = nullptr;
    const cudaError_t result = cudaStreamEndCapture(handle_, &graph);
    cudaGetLastError();  // LibTorch would find it behind its next kernel
    return result;
  }

 private:
  bool has_ended_ = false;
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

TEST_F(NcclCaptureTest, WhatNobodyHasWaitedForSpoilsIt) {
  OwnCapture capture(*group_);
  const WorkPtr forgotten =
      group_->all_gather_into(tensor_, tensor_, {Lane::kGather, "unit layers.0"});
  group_->all_reduce(tensor_, ReduceOp::kSum)->wait();  // of another lane
  EXPECT_EQ(capture.end(), cudaErrorStreamCaptureUnjoined);
}

TEST_F(NcclCaptureTest, ItIsNotWaitedForOnAStreamThatIsNotCaptured) {
  WorkPtr captured;
  {
    OwnCapture capture(*group_);
    captured = group_->all_reduce(tensor_, ReduceOp::kSum, {Lane::kReduce, "the norm"});
    captured->wait();
    EXPECT_EQ(capture.end(), cudaSuccess);
  }
  const std::string text =
      "all_reduce for the norm on lane 1 is a part of a CUDA graph, and the current stream is not";
  EXPECT_THAT(refusal_of([&] { captured->wait(); }), HasSubstr(text));
  EXPECT_THAT(
      refusal_of([&] {
        group_->all_gather_into(tensor_, tensor_, {Lane::kGather, "unit layers.0", captured});
      }),
      HasSubstr(text));
}

TEST_F(NcclCaptureTest, WhatIsFromBeforeIsNotWaitedForInIt) {
  const WorkPtr before = group_->all_reduce(tensor_, ReduceOp::kSum, {Lane::kReduce, "the norm"});
  const std::string text =
      "all_reduce for the norm on lane 1 was issued outside the CUDA graph that is captured now";
  {
    OwnCapture capture(*group_);
    EXPECT_THAT(refusal_of([&] { before->wait(); }), HasSubstr(text));
    group_->all_reduce(tensor_, ReduceOp::kSum)->wait();
    EXPECT_EQ(capture.end(), cudaSuccess);  // the refusal is ahead of CUDA's, which would spoil it
  }
  OwnCapture capture(*group_);
  EXPECT_THAT(refusal_of([&] {
                group_->all_gather_into(tensor_, tensor_, {Lane::kGather, "unit layers.0", before});
              }),
              HasSubstr(text));
  EXPECT_NE(capture.end(), cudaSuccess);  // the lane had joined it
  before->wait();
}

// What the doubles, and CUDA, know about events, of which works are made.
TEST_F(NcclCaptureTest, EventsDoNotReachAcrossItsEdge) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const c10::Stream outside = cuda.getStream(group_->device());
  c10::Event before(c10::kCUDA);
  c10::Event within(c10::kCUDA);
  before.record(outside);
  {
    OwnCapture capture(*group_);
    within.record(cuda.getStream(group_->device()));
    EXPECT_EQ(capture.end(), cudaSuccess);
  }
  EXPECT_NE(refusal_of([&] { within.block(outside); }), "");
  OwnCapture capture(*group_);
  EXPECT_NE(refusal_of([&] { before.block(cuda.getStream(group_->device())); }), "");
  EXPECT_EQ(capture.end(), cudaErrorStreamCaptureInvalidated);
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
