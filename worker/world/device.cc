#include "worker/world/device.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>

namespace fsdprun::worker {

// fsdp::cuda_device_count() loads LibTorch's CUDA libraries, so it must be called before any other
// CUDA query.
at::Device ChooseDevice(const fsdp::ProcessGroupOptions& options) {
  const bool may_use_cuda = options.backend == "auto" || options.backend == "nccl";
  const int64_t gpus = may_use_cuda ? fsdp::cuda_device_count() : 0;
  if (gpus == 0) {
    TORCH_CHECK(
        options.backend != "nccl",
        "parallel.backend is nccl, but no GPU can be used here (no driver, none visible, or "
        "a CPU build of LibTorch); choose auto, gloo or shm to train on CPUs");
    return at::kCPU;
  }
  TORCH_CHECK(options.local_rank < gpus, "local rank ", options.local_rank, " but ", gpus,
              " GPUs are visible; start one worker per GPU, each of which sees all of them (Slurm: "
              "--gpus-per-node, not --gpus-per-task), or set parallel.backend to gloo or shm");
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.local_rank));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

OwnStream::OwnStream(at::Device device) {
  if (device.is_cpu()) {
    return;
  }
  const c10::impl::VirtualGuardImpl devices(device.type());
  devices.synchronizeDevice(device.index());  // what was given to the other stream
  guard_.emplace(devices.getStreamFromGlobalPool(device));
}

DeviceMemory MemoryOf(at::Device device) {
  if (!device.is_cuda()) {
    return {};
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
}

int64_t PeakMemoryBytes(at::Device device) {
  if (device.is_cuda()) {
    return MemoryOf(device).peak_bytes;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace fsdprun::worker
