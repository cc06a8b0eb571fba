#include <c10/util/Exception.h>
#include <fsdp/device_graph.h>

#include <utility>

#include "fsdp_runtime/src/comm/nccl_library.h"

namespace fsdp {
namespace {

/// What a graph is where there are none.
class CalledAgain : public DeviceGraph {
 public:
  void capture(std::function<void()> work) override { work_ = std::move(work); }
  void replay() override {
    TORCH_CHECK(work_, "DeviceGraph::replay: nothing was captured; call capture() before");
    work_();
  }

 private:
  std::function<void()> work_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device) {
  if (device.is_cpu()) {
    return std::make_unique<CalledAgain>();
  }
  TORCH_CHECK(device.is_cuda(), "make_device_graph: there are no graphs of ", device,
              "; cpu or cuda expected");
  return make_cuda_graph(device);
}

}  // namespace fsdp
