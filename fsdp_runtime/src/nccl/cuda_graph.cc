// Here and not on the command line, so that this file can share the precompiled header.
#define USE_CUDA

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <fsdp/device_graph.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "fsdp_runtime/src/comm/nccl_entry.h"
#include "fsdp_runtime/src/nccl/world_communicators.h"

namespace fsdp {
namespace {

struct Graph : at::cuda::CUDAGraph {
  /// It ends its pool itself.
  bool has_captured() const { return capture_ended_; }
};

/// What may have been done already is refused then, which is not worth a word.
template <class Call>
bool succeeds(Call call) {
  try {
    call();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// LibTorch's allocators are not to ask whether the capture goes on: capture_begin() and
/// capture_end() leave that to be done if CUDA gives them an error.
void end_pool(c10::MempoolId_t pool, c10::Device device, bool is_released) {
  namespace memory = c10::cuda::CUDACachingAllocator;
  succeeds([&] { memory::endAllocateToPool(device.index(), pool); });
  succeeds([&] { at::getHostAllocator(c10::kCUDA)->end_allocate_to_pool(pool); });
  if (!is_released) {
    succeeds([&] { memory::releasePool(device.index(), pool); });
    succeeds([&] { at::getHostAllocator(c10::kCUDA)->release_pool(pool); });
  }
}

/// Of this thread alone: others read ahead, write checkpoints and watch collectives meanwhile.
std::unique_ptr<Graph> begin_capture(c10::MempoolId_t pool, c10::Device device) {
  auto graph = std::make_unique<Graph>();
  try {
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  } catch (...) {
    // Its destructor would end the process: it takes for granted that it has begun.
    static_cast<void>(graph.release());
    end_pool(pool, device, /*is_released=*/false);
    throw;
  }
  return graph;
}

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(c10::Device device) : device_(device) {}
  ~CudaGraph() override { forget(); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void capture(std::function<void()> work) override {
    const c10::cuda::CUDAGuard guard(device_);
    TORCH_CHECK(c10::cuda::getCurrentCUDAStream() != c10::cuda::getDefaultCUDAStream(),
                "DeviceGraph::capture: the current stream is the default one, which CUDA cannot "
                "capture; make another one the current stream, with a c10::StreamGuard");
    forget();
    // What the steps before have left to the allocator is for others now: the graph has memory of
    // its own.
    c10::cuda::CUDACachingAllocator::emptyCache();
    revocations_ = WorldCommunicators::revocations();
    const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
    std::unique_ptr<Graph> graph = begin_capture(pool, device_);
    try {
      work();
      graph->capture_end();
    } catch (...) {
      // Neither the stream nor the allocators go on with it. A graph that was made has its pool.
      if (!graph->has_captured()) {
        succeeds([&] { graph->capture_end(); });
      }
      end_pool(pool, device_, /*is_released=*/graph->has_captured());
      throw;
    }
    graph_ = std::move(graph);
  }

  void replay() override {
    TORCH_CHECK(graph_, "DeviceGraph::replay: nothing was captured; call capture() before");
    const c10::cuda::CUDAGuard guard(device_);
    graph_->replay();
  }

 private:
  /// NCCL has a word in the end of a graph, at the communicators that it uses. When these have been
  /// revoked they are freed by others, at any time, so the graph is left as it is then.
  void forget() {
    if (graph_ && WorldCommunicators::revocations() != revocations_) {
      static_cast<void>(graph_.release());
    }
    graph_.reset();
  }

  const c10::Device device_;
  std::unique_ptr<Graph> graph_;
  int64_t revocations_ = 0;  // when its capture began
};

}  // namespace

extern "C" FSDP_API DeviceGraph* fsdp_make_cuda_graph(c10::Device device) {
  const auto devices = static_cast<int64_t>(c10::cuda::device_count());
  TORCH_CHECK(device.index() < devices, "make_device_graph: ", device, ", but ", devices,
              " GPUs are visible");
  return new CudaGraph(
      {c10::kCUDA, device.has_index() ? device.index() : c10::cuda::current_device()});
}

}  // namespace fsdp
