// The functions of the CUDA runtime that LibTorch calls on the way of a collective, of a tensor on
// a device, and of a capture. Others are libcudart's, which finds no device.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/unit/fsdp_runtime/nccl/fake_cuda.h"

using fsdp::testing::FakeCuda;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) {
    last_error = error;
  }
  return error;
}

constexpr size_t kMemory = size_t{16} << 30;

cudaError_t allocate(void** data, size_t bytes) {
  *data = std::calloc(std::max<size_t>((bytes + 511) / 512, 1), 512);
  return *data == nullptr ? noted(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t new_event(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(std::malloc(1));
  return cudaSuccess;
}

// Graphs say nothing of themselves but what is written down.
char any_graph = 0;

cudaError_t status_of(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = FakeCuda::get().capture_status(stream);
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Devices.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = FakeCuda::kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = FakeCuda::device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= FakeCuda::kDevices) {
    return noted(cudaErrorInvalidDevice);
  }
  FakeCuda::set_device(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "double");
  properties->major = 9;
  properties->multiProcessorCount = 8;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxThreadsPerBlock = 1024;
  properties->warpSize = 32;
  properties->sharedMemPerBlock = 48 << 10;
  properties->totalGlobalMem = kMemory;
  for (int& size : properties->maxGridSize) {
    size = 65535;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:0%d:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// Errors.
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// Memory.
cudaError_t cudaMalloc(void** data, size_t bytes) { return allocate(data, bytes); }
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) { return allocate(data, bytes); }
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = kMemory;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  FakeCuda::get().launch(stream);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  FakeCuda::get().launch(stream);
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = FakeCuda::device();
  attributes->devicePointer = const_cast<void*>(data);
  return cudaSuccess;
}

// Kernels, which do nothing.
cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  FakeCuda::get().launch(stream);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

// Streams and events.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = FakeCuda::get().new_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return noted(FakeCuda::get().synchronize(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return noted(FakeCuda::get().wait(stream, event));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) { return new_event(event); }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return new_event(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FakeCuda::get().destroy(event);
  std::free(reinterpret_cast<void*>(event));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FakeCuda::get().record(event, stream);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return noted(FakeCuda::get().query(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return noted(FakeCuda::get().synchronize(event));
}

// Captures.
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return status_of(stream, status);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FakeCuda::get().begin_capture(stream, mode);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t result = FakeCuda::get().end_capture(stream);
  *graph = result == cudaSuccess ? reinterpret_cast<cudaGraph_t>(&any_graph) : nullptr;
  return noted(result);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  *graph = reinterpret_cast<cudaGraphExec_t>(&any_graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  FakeCuda& cuda = FakeCuda::get();
  cuda.write(FakeCuda::device(), "launch a graph on " + cuda.name(stream));
  cuda.launch(stream);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t* dependencies) {
  if (id != nullptr) {
    *id = 1;
  }
  if (dependencies != nullptr) {
    *dependencies = 0;
  }
  return status_of(stream, status);
}
#endif

}  // extern "C"
