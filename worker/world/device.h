#pragma once

#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>
#include <fsdp/process_group.h>

#include <cstdint>
#include <optional>

namespace fsdprun::worker {

/// The GPU of this process's local rank, which becomes the current one, or the CPU where no GPU is
/// to be used or there is none. Errors: c10::Error if the backend needs a GPU that is not there.
at::Device ChooseDevice(const fsdp::ProcessGroupOptions& options);

/// On a GPU, makes a stream of its own the current one, as long as this exists: the default one
/// cannot be recorded as a graph. Waits until the device has nothing to do. On the CPU nothing.
class OwnStream {
 public:
  explicit OwnStream(at::Device device);

 private:
  std::optional<c10::StreamGuard> guard_;
};

/// Of the device's allocator: in use now, and the most so far; 0 for CPU.
struct DeviceMemory {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};
DeviceMemory MemoryOf(at::Device device);

/// Peak memory of this process: allocated on the device, or resident for CPU.
int64_t PeakMemoryBytes(at::Device device);

}  // namespace fsdprun::worker
