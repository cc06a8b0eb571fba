#include "tests/unit/fsdp_runtime/nccl/fake_cuda.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace fsdp::testing {
namespace {

thread_local int current_device = 0;

cudaStreamCaptureMode& capture_mode() {
  static thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  return mode;
}

void invalidate(Capture& capture) {
  if (capture.status == cudaStreamCaptureStatusActive) {
    capture.status = cudaStreamCaptureStatusInvalidated;
  }
}

void add_node(FakeCuda::Stream& stream) { stream.nodes.insert(stream.capture->nodes++); }

}  // namespace

FakeCuda& FakeCuda::get() {
  static auto* cuda = new FakeCuda;  // threads of LibTorch outlive main()
  return *cuda;
}

FakeCuda::FakeCuda() {
  for (int device = 0; device < kDevices; ++device) {
    devices_[device].default_stream.device = device;
  }
}

void FakeCuda::reset() {
  std::lock_guard lock(mu_);
  for (Device& device : devices_) {
    device.calls.clear();
    device.streams = {};
    device.events = {};
  }
  while (!captures_.empty()) {
    forget(CapturePtr(captures_.back()));
  }
}

void FakeCuda::write(int device, const std::string& call) {
  std::lock_guard lock(mu_);
  devices_[device].calls.push_back(call);
  changed_.notify_all();
}

std::vector<std::string> FakeCuda::calls(int device) const {
  std::lock_guard lock(mu_);
  return devices_[device].calls;
}

bool FakeCuda::wait_for_call(int device, const std::string& text) const {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, std::chrono::minutes(1), [&] {
    const std::vector<std::string>& calls = devices_[device].calls;
    return std::any_of(calls.begin(), calls.end(), [&](const std::string& call) {
      return call.find(text) != std::string::npos;
    });
  });
}

int FakeCuda::device() { return current_device; }

void FakeCuda::set_device(int device) { current_device = device; }

FakeCuda::Stream& FakeCuda::stream_of(cudaStream_t handle) {
  return handle == nullptr ? devices_[current_device].default_stream
                           : *reinterpret_cast<Stream*>(handle);
}

FakeCuda::Event& FakeCuda::event_of(cudaEvent_t handle) { return events_[handle]; }

std::string FakeCuda::name(cudaStream_t handle) {
  std::lock_guard lock(mu_);
  const int number =
      handle == nullptr ? 0 : devices_[stream_of(handle).device].streams.find(handle);
  return "stream " + std::to_string(number);
}

std::string FakeCuda::name(cudaEvent_t handle) {
  std::lock_guard lock(mu_);
  return "event " + std::to_string(devices_[current_device].events.find(handle));
}

cudaStream_t FakeCuda::new_stream() {
  std::lock_guard lock(mu_);
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->device = current_device;
  return reinterpret_cast<cudaStream_t>(streams_.back().get());
}

void FakeCuda::forget_ended(std::vector<KernelPtr>& kernels) const {
  std::erase_if(kernels, [](const KernelPtr& kernel) { return kernel->has_ended; });
}

void FakeCuda::record(cudaEvent_t handle, cudaStream_t stream) {
  write(current_device, "record " + name(handle) + " on " + name(stream));
  std::lock_guard lock(mu_);
  Stream& on = stream_of(stream);
  forget_ended(on.pending);
  event_of(handle) = {on.pending, on.capture, on.nodes};
}

// Only a stream's own order reaches from what is captured to what is not, and the other way. A
// stream that is not captured joins the capture of what it waits for.
cudaError_t FakeCuda::wait(cudaStream_t stream, cudaEvent_t handle) {
  write(current_device, name(stream) + " waits for " + name(handle));
  std::lock_guard lock(mu_);
  Stream& waiting = stream_of(stream);
  const Event& event = event_of(handle);
  if (event.capture == nullptr && waiting.capture == nullptr) {
    std::copy(event.pending.begin(), event.pending.end(), std::back_inserter(waiting.pending));
    return cudaSuccess;
  }
  if (waiting.capture != nullptr && waiting.capture != event.capture) {
    invalidate(*waiting.capture);
    return cudaErrorStreamCaptureIsolation;
  }
  if (event.capture->status != cudaStreamCaptureStatusActive) {
    return event.capture->status == cudaStreamCaptureStatusNone ? cudaErrorCapturedEvent
                                                                : cudaErrorStreamCaptureInvalidated;
  }
  if (waiting.capture == nullptr) {
    waiting.capture = event.capture;
    add_node(waiting);  // a fork has to be joined though it be given nothing
  }
  waiting.nodes.insert(event.nodes.begin(), event.nodes.end());
  return cudaSuccess;
}

// As the modes of cudaThreadExchangeStreamCaptureMode() say.
bool FakeCuda::is_forbidden() const {
  return std::any_of(captures_.begin(), captures_.end(), [](const CapturePtr& capture) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    switch (capture_mode()) {
      case cudaStreamCaptureModeGlobal:
        return is_own || capture->mode == cudaStreamCaptureModeGlobal;
      case cudaStreamCaptureModeThreadLocal:
        return is_own;
      default:
        return false;
    }
  });
}

void FakeCuda::invalidate_all() {
  for (const CapturePtr& capture : captures_) {
    invalidate(*capture);
  }
}

cudaError_t FakeCuda::query(cudaEvent_t handle) {
  std::lock_guard lock(mu_);
  Event& event = event_of(handle);
  if (event.capture) {
    invalidate(*event.capture);
    return cudaErrorCapturedEvent;
  }
  if (is_forbidden()) {
    invalidate_all();
    return cudaErrorStreamCaptureUnsupported;
  }
  forget_ended(event.pending);
  return event.pending.empty() ? cudaSuccess : cudaErrorNotReady;
}

void FakeCuda::wait_until_ended(std::unique_lock<std::mutex>& lock,
                                const std::vector<KernelPtr>& kernels) {
  changed_.wait(lock, [&] {
    return std::all_of(kernels.begin(), kernels.end(),
                       [](const KernelPtr& kernel) { return kernel->has_ended; });
  });
}

cudaError_t FakeCuda::synchronize(cudaEvent_t handle) {
  std::unique_lock lock(mu_);
  const Event event = event_of(handle);
  if (event.capture) {
    invalidate(*event.capture);
    return cudaErrorCapturedEvent;
  }
  wait_until_ended(lock, event.pending);
  return cudaSuccess;
}

cudaError_t FakeCuda::synchronize(cudaStream_t stream) {
  std::unique_lock lock(mu_);
  const Stream on = stream_of(stream);
  if (on.capture) {
    invalidate(*on.capture);
    return cudaErrorStreamCaptureUnsupported;
  }
  wait_until_ended(lock, on.pending);
  return cudaSuccess;
}

void FakeCuda::destroy(cudaEvent_t handle) {
  std::lock_guard lock(mu_);
  events_.erase(handle);
  for (Device& device : devices_) {
    device.events.of.erase(handle);
  }
}

void FakeCuda::begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  std::lock_guard lock(mu_);
  captures_.push_back(std::make_shared<Capture>(Capture{mode, std::this_thread::get_id(), stream}));
  stream_of(stream).capture = captures_.back();
}

cudaStreamCaptureStatus FakeCuda::capture_status(cudaStream_t stream) {
  std::lock_guard lock(mu_);
  const CapturePtr& capture = stream_of(stream).capture;
  return capture ? capture->status : cudaStreamCaptureStatusNone;
}

bool FakeCuda::has_all_joined(const Capture& capture) {
  return static_cast<int>(stream_of(capture.origin).nodes.size()) == capture.nodes;
}

void FakeCuda::forget(const CapturePtr& capture) {
  capture->status = cudaStreamCaptureStatusNone;
  std::erase(captures_, capture);
  const auto leave = [&capture](Stream& stream) {
    if (stream.capture == capture) {
      stream.capture = nullptr;
      stream.nodes.clear();
    }
  };
  for (Device& device : devices_) {
    leave(device.default_stream);
  }
  for (const auto& stream : streams_) {
    leave(*stream);
  }
}

cudaError_t FakeCuda::end_capture(cudaStream_t stream) {
  std::lock_guard lock(mu_);
  const CapturePtr capture = stream_of(stream).capture;
  if (capture == nullptr || capture->origin != stream) {
    return cudaErrorStreamCaptureUnmatched;
  }
  cudaError_t result = cudaSuccess;
  if (capture->status != cudaStreamCaptureStatusActive) {
    result = cudaErrorStreamCaptureInvalidated;
  } else if (!has_all_joined(*capture)) {
    result = cudaErrorStreamCaptureUnjoined;
  }
  forget(capture);
  return result;
}

bool FakeCuda::launch(cudaStream_t stream, const KernelPtr& kernel) {
  std::lock_guard lock(mu_);
  Stream& on = stream_of(stream);
  if (on.capture) {
    add_node(on);
  } else {
    on.pending.push_back(kernel);
  }
  return on.capture != nullptr;
}

void FakeCuda::launch(cudaStream_t stream) {
  std::lock_guard lock(mu_);
  if (Stream& on = stream_of(stream); on.capture) {
    add_node(on);
  }
}

void FakeCuda::end(const KernelPtr& kernel) {
  std::lock_guard lock(mu_);
  kernel->has_ended = true;
  changed_.notify_all();
}

}  // namespace fsdp::testing

using fsdp::testing::FakeCuda;

extern "C" cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(fsdp::testing::capture_mode(), *mode);
  return cudaSuccess;
}
