// A libnvidia-ml.so.1 of a machine with two GPUs, of which the second is not well. FAKE_NVML in the
// environment makes it fail or hang.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kNotSupported = 3;
constexpr int kVersionMismatch = 18;

bool IsFirst(void* device) { return reinterpret_cast<intptr_t>(device) == 1; }

int Copy(const char* text, char* to, unsigned int size) {
  std::strncpy(to, text, size);
  return 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* wish = std::getenv("FAKE_NVML");
  const std::string mode = wish == nullptr ? "" : wish;
  if (mode == "hang") {
    ::pause();
  }
  return mode == "mismatch" ? kVersionMismatch : 0;
}
const char* nvmlErrorString(int error) {
  return error == kVersionMismatch ? "Driver/library version mismatch" : "Unknown";
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned int size) {
  return Copy("570.86", version, size);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<intptr_t>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned int size) {
  return Copy("NVIDIA Fake", name, size);
}
int nvmlDeviceGetPersistenceMode(void* device, int* mode) {
  *mode = IsFirst(device) ? 1 : 0;
  return 0;
}
int nvmlDeviceGetMigMode(void*, unsigned int*, unsigned int*) { return kNotSupported; }
int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count) {
  *count = !IsFirst(device) && type == 1 && counter == 0 ? 7 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned int* corrected, unsigned int* uncorrected,
                              unsigned int* pending, unsigned int* failed) {
  *corrected = *uncorrected = 1;
  *pending = IsFirst(device) ? 0 : 1;
  *failed = 0;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned int* width) {
  *width = IsFirst(device) ? 16 : 8;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned int* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetComputeMode(void*, int* mode) {
  *mode = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 1000;
  memory[1] = 900;
  memory[2] = 100;
  return 0;
}
int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  *status = 4;
  return 0;
}
int ncclGetVersion(int* version) {
  *version = 22104;
  return 0;
}
}
