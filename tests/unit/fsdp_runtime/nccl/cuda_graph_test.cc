// libfsdp_nccl's DeviceGraph, and LibTorch's CUDAGraph in it, over the doubles.

#include <c10/core/CachingDeviceAllocator.h>
#include <fsdp/device_graph.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/nccl/nccl_ranks.h"

namespace fsdp::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class CudaGraphTest : public NcclTest {
 protected:
  static std::shared_ptr<Collectives> alone() {
    ProcessGroupOptions options = nccl_options(0, 1);
    options.communicates_alone = true;
    return init_process_group(options);
  }
  /// What has been launched since call number `begin`.
  std::vector<std::string> launches(size_t begin) const {
    std::vector<std::string> all = calls_of(*group_, begin);
    std::erase_if(all, [](const std::string& call) {
      return call.find("graph") == std::string::npos && call.find("ncclAllReduce") != 0;
    });
    return all;
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  const std::shared_ptr<Collectives> group_ = alone();
  const at::Tensor tensor_ = on_device(*group_, 4);
  const std::unique_ptr<DeviceGraph> graph_ = make_device_graph(group_->device());
};

TEST_F(CudaGraphTest, WhatIsCapturedIsGivenToTheDeviceOnceAndReplayedOften) {
  const c10::StreamGuard guard(new_stream_of(*group_));
  int calls = 0;
  graph_->capture([&] {
    ++calls;
    group_->all_reduce(tensor_, ReduceOp::kSum)->wait();
  });
  const size_t captured = calls_of(*group_).size();
  EXPECT_THAT(calls_of(*group_), Contains(HasSubstr(", captured")));
  for (int i = 0; i < 3; ++i) {
    graph_->replay();
  }
  EXPECT_EQ(calls, 1);
  const std::vector<std::string> all = launches(captured);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_THAT(all.front(), HasSubstr("launch a graph on stream "));
  EXPECT_EQ(std::count(all.begin(), all.end(), all.front()), 3);
}

TEST_F(CudaGraphTest, TheDefaultStreamIsRefused) {
  EXPECT_THAT(error_of([&] { graph_->capture([] {}); }),
              HasSubstr("the current stream is the default one, which CUDA cannot capture"));
}

TEST_F(CudaGraphTest, WithoutACaptureThereIsNothingToReplay) {
  EXPECT_THAT(error_of([&] { graph_->replay(); }), HasSubstr("nothing was captured"));
}

TEST_F(CudaGraphTest, WhatTheWorkThrowsEndsTheCapture) {
  const c10::StreamGuard guard(new_stream_of(*group_));
  graph_->capture([&] { group_->all_reduce(tensor_, ReduceOp::kSum)->wait(); });
  EXPECT_EQ(error_of([&] { graph_->capture([] { throw std::runtime_error("no rows"); }); }),
            "no rows");
  EXPECT_THAT(error_of([&] { graph_->replay(); }), HasSubstr("nothing was captured"));
  // The stream takes work again, and another capture.
  group_->all_reduce(tensor_, ReduceOp::kSum)->wait_on_host();
  graph_->capture([&] { group_->all_reduce(tensor_, ReduceOp::kSum)->wait(); });
  graph_->replay();
}

TEST_F(CudaGraphTest, WhatCannotBeCapturedIsAnErrorThatNamesIt) {
  const c10::StreamGuard guard(new_stream_of(*group_));
  EXPECT_THAT(error_of([&] { graph_->capture([&] { group_->barrier(); }); }),
              HasSubstr("while a CUDA graph is captured"));
  // Work that nobody waits for is not joined: CUDA says so at the end.
  EXPECT_NE(error_of([&] {
              graph_->capture([&] {
                group_->all_gather_into(tensor_, tensor_, {Lane::kGather, "a unit"});
              });
            }),
            "");
  EXPECT_THAT(error_of([&] { graph_->replay(); }), HasSubstr("nothing was captured"));
}

// LibTorch's allocators must know that the capture is over, whoever has ended it.
TEST_F(CudaGraphTest, BehindACaptureThatHasFailedMemoryIsAllocatedAsEver) {
  const c10::StreamGuard guard(new_stream_of(*group_));
  const auto no_end = [&] { group_->all_gather_into(tensor_, tensor_, {Lane::kGather, "a unit"}); };
  const auto throws = [&] {
    on_device(*group_, 1000).zero_();
    throw std::runtime_error("no rows");
  };
  const auto nested = [&] { make_device_graph(group_->device())->capture([] {}); };
  for (const std::function<void()>& work : {std::function<void()>(no_end), {throws}, {nested}}) {
    EXPECT_NE(error_of([&] { graph_->capture(work); }), "");
    c10::getDeviceAllocator(c10::kCUDA)->emptyCache();
    const at::Tensor fresh = on_device(*group_, 1 << 20);
    fresh.zero_();
    graph_->capture([&] { group_->all_reduce(tensor_, ReduceOp::kSum)->wait(); });
    graph_->replay();
  }
}

TEST_F(CudaGraphTest, ADeviceWithoutANumberIsTheCurrentOne) {
  const c10::StreamGuard guard(new_stream_of(*group_));
  make_device_graph(c10::kCUDA)->capture([&] { tensor_.zero_(); });
}

TEST_F(CudaGraphTest, AGpuThatIsNotThereIsRefused) {
  EXPECT_THAT(error_of([] {
                make_device_graph({c10::kCUDA, 7});
              }),
              HasSubstr("make_device_graph: cuda:7, but 2 GPUs are visible"));
}

}  // namespace
}  // namespace fsdp::testing
