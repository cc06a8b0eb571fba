#pragma once

// A double of the CUDA runtime, in this program: its functions come ahead of those of libcudart,
// for libfsdp_nccl as for LibTorch's CUDA libraries. So both run as they are, on two devices that
// no machine need have. Memory of a device is memory of the host, zeroed, and kernels do nothing;
// what takes time on a stream is what NCCL's double gives to it. Calls that order streams, and
// NCCL's, are written down.

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::testing {

/// What has been given to a stream and has not ended.
struct Kernel {
  bool has_ended = false;
};
using KernelPtr = std::shared_ptr<Kernel>;

/// What is captured.
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  cudaStream_t origin = nullptr;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;  // None: it has ended
  int nodes = 0;
};
using CapturePtr = std::shared_ptr<Capture>;

/// Thread: any. Streams, events and communicators are numbered for each device, in the order in
/// which calls name them; stream 0 is the default one.
class FakeCuda {
 public:
  static FakeCuda& get();
  static constexpr int kDevices = 2;

  /// Forgets the calls and the numbers, and ends what is captured.
  void reset();
  /// Writes down a call that is about `device`.
  void write(int device, const std::string& call);
  std::vector<std::string> calls(int device) const;
  /// Waits until a call on `device` contains `text`, for a minute at most. Returns whether it does.
  bool wait_for_call(int device, const std::string& text) const;

  // For the doubles.
  struct Stream {
    int device = 0;
    std::vector<KernelPtr> pending;
    CapturePtr capture;
    std::set<int> nodes;  // of the capture, those that what comes next is behind
  };
  struct Event {
    std::vector<KernelPtr> pending;
    CapturePtr capture;   // that recorded it; null: none
    std::set<int> nodes;  // as of the stream
  };

  static int device();
  static void set_device(int device);
  std::string name(cudaStream_t handle);
  std::string name(cudaEvent_t handle);

  cudaStream_t new_stream();
  void record(cudaEvent_t handle, cudaStream_t stream);
  cudaError_t wait(cudaStream_t stream, cudaEvent_t handle);
  cudaError_t query(cudaEvent_t handle);
  cudaError_t synchronize(cudaEvent_t handle);
  cudaError_t synchronize(cudaStream_t stream);
  void destroy(cudaEvent_t handle);
  void begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaStreamCaptureStatus capture_status(cudaStream_t stream);
  cudaError_t end_capture(cudaStream_t stream);

  /// Puts `kernel` on the stream, or into what captures that. Returns whether it is captured.
  bool launch(cudaStream_t stream, const KernelPtr& kernel);
  /// The same of what takes no time.
  void launch(cudaStream_t stream);
  void end(const KernelPtr& kernel);

 private:
  struct Numbers {
    std::map<const void*, int> of;
    int next = 1;
    int find(const void* handle) {
      const auto [found, is_new] = of.emplace(handle, next);
      next += is_new ? 1 : 0;
      return found->second;
    }
  };
  struct Device {
    Stream default_stream;
    Numbers streams, events;
    std::vector<std::string> calls;
  };

  FakeCuda();
  Stream& stream_of(cudaStream_t handle);
  Event& event_of(cudaEvent_t handle);
  bool is_forbidden() const;  // with mu_ held, as the others
  void invalidate_all();
  bool has_all_joined(const Capture& capture);
  void forget(const CapturePtr& capture);
  void forget_ended(std::vector<KernelPtr>& kernels) const;
  void wait_until_ended(std::unique_lock<std::mutex>& lock, const std::vector<KernelPtr>& kernels);

  mutable std::mutex mu_;
  mutable std::condition_variable changed_;
  Device devices_[kDevices];  // guarded by mu_, as is the rest
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<cudaEvent_t, Event> events_;
  std::vector<CapturePtr> captures_;
};

}  // namespace fsdp::testing
