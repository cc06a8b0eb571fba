// Here and not on the command line, so that this file can share the precompiled header.
#define USE_CUDA

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <fsdp/device_graph.h>

#include <functional>
#include <memory>

#include "fsdp_runtime/src/comm/nccl_entry.h"

namespace fsdp {
namespace {

using Graph = at::cuda::CUDAGraph;

/// A capture that has been spoilt leaves the allocator with questions to this object about streams
/// for good, so it stays.
void keep_for_good(std::unique_ptr<Graph> graph) {
  try {
    graph->capture_end();  // the stream must not remain captured
  } catch (const std::exception&) {
    // Whatever has spoilt it says more.
  }
  static_cast<void>(graph.release());
}

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(c10::Device device) : device_(device) {}

  void capture(std::function<void()> work) override {
    const c10::cuda::CUDAGuard guard(device_);
    TORCH_CHECK(c10::cuda::getCurrentCUDAStream() != c10::cuda::getDefaultCUDAStream(),
                "DeviceGraph::capture: the current stream is the default one, which CUDA cannot "
                "capture; make another one the current stream, with a c10::StreamGuard");
    graph_.reset();
    // What the steps before have left to the allocator is for others now: the graph has memory of
    // its own.
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto graph = std::make_unique<Graph>();
    // Of this thread alone: others read ahead, write checkpoints and watch collectives meanwhile.
    graph->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      keep_for_good(std::move(graph));
      throw;
    }
    try {
      graph->capture_end();
    } catch (...) {
      static_cast<void>(graph.release());  // as keep_for_good() says
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
  const c10::Device device_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace

extern "C" FSDP_API DeviceGraph* fsdp_make_cuda_graph(c10::Device device) {
  const auto devices = static_cast<int64_t>(c10::cuda::device_count());
  TORCH_CHECK(device.index() < devices, "make_device_graph: ", device, ", but ", devices,
              " GPUs are visible");
  return new CudaGraph({c10::kCUDA, device.has_index() ? device.index() : c10::DeviceIndex{0}});
}

}  // namespace fsdp
