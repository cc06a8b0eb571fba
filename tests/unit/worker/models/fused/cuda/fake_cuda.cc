// A libcuda.so.1 of a machine with two GPUs, of capability 9.0, that launches nothing and writes
// down what it is asked.

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/unit/worker/models/fused/cuda/fake_libraries.h"

namespace {

fsdprun::worker::FakeLibrary fake;
int contexts[2], modules = 0, functions = 1000;  // handles, of different numbers
std::map<const void*, const void*> context_of;   // of modules and functions; with the mutex
std::mutex mutex;                                // callers may be several threads
thread_local void* current = nullptr;

constexpr int kInvalidContext = 201;

int Called(const std::string& name, const std::string& arguments) {
  const std::lock_guard lock(mutex);
  fake.calls.push_back(arguments.empty() ? name : name + " " + arguments);
  return fake.failing == name ? fake.failure : 0;
}

/// A handle of what is loaded into the context of the calling thread, which has to have one.
int Loaded(void** handle, int& count) {
  const std::lock_guard lock(mutex);
  *handle = reinterpret_cast<void*>(static_cast<intptr_t>(++count));
  context_of[*handle] = current;
  return current == nullptr ? kInvalidContext : 0;
}

/// Whether the calling thread is in the context of the handle.
bool IsInContextOf(const void* handle) {
  const std::lock_guard lock(mutex);
  return current != nullptr && context_of[handle] == current;
}

std::string Number(const void* handle) {
  return std::to_string(reinterpret_cast<intptr_t>(handle));
}

}  // namespace

extern "C" {

fsdprun::worker::FakeLibrary* FakeOfCuda() { return &fake; }

int cuInit(unsigned flags) { return Called("cuInit", std::to_string(flags)); }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 100;  // a handle
  return Called("cuDeviceGet", std::to_string(ordinal));
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : -1;
  return Called("cuDeviceGetAttribute", std::to_string(attribute) + " " + std::to_string(device));
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device - 100];
  return Called("cuDevicePrimaryCtxRetain", std::to_string(device));
}
int cuCtxGetCurrent(void** context) {
  *context = current;
  return fake.failing == "cuCtxGetCurrent" ? fake.failure : 0;
}
int cuCtxSetCurrent(void* context) {
  current = context;
  return Called("cuCtxSetCurrent", context == &contexts[0] ? "0" : "1");
}
int cuModuleLoadData(void** module, const void* image) {
  const int result =
      Called("cuModuleLoadData", std::memcmp(image, "cu\0bin", 6) == 0 ? "the cubin" : "");
  return result != 0 ? result : Loaded(module, modules);
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  const int result = Called("cuModuleGetFunction", Number(module) + " " + name);
  return result != 0 ? result : Loaded(function, functions);
}
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** arguments, void** extra) {
  std::string shape;
  for (const unsigned number : {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes}) {
    shape += " " + std::to_string(number);
  }
  const int result =
      Called("cuLaunchKernel", Number(function) + shape + " stream " + Number(stream) +
                                   " argument " + std::to_string(*static_cast<int*>(arguments[0])) +
                                   (extra == nullptr ? "" : " extra"));
  return result != 0 || IsInContextOf(function) ? result : kInvalidContext;
}
int cuGetErrorString(int result, const char** text) {
  *text = result == 719   ? "unspecified launch failure"
          : result == 900 ? "operation not permitted when stream is capturing"
          : result == 2   ? "out of memory"
                          : nullptr;
  return *text == nullptr ? 1 : 0;
}

}  // extern "C"
