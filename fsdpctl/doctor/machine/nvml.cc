#include "fsdpctl/doctor/machine/nvml.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/machine/probe.h"

namespace fsdprun::doctor {
namespace {

constexpr Duration kNcclPatience = std::chrono::seconds(15);
constexpr int kMostGpus = 64;

// NVML's interface, as far as it is used; results are numbers, 0 for success. None of its headers
// is needed to build this.

using Device = void*;
constexpr int kUncorrected = 1;
constexpr int kVolatile = 0;
constexpr int kPeerRead = 0;

struct DeviceMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

class Library {
 public:
  Library() : handle_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {}

  bool is_there() const { return handle_ != nullptr; }

  /// NVML's number for a function that this version of it does not have is 13.
  template <typename... Arguments>
  int Call(const char* name, Arguments... arguments) const {
    constexpr int kFunctionNotFound = 13;
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, name));
    return function == nullptr ? kFunctionNotFound : function(arguments...);
  }

  const char* ErrorText(int error) const {
    const auto function =
        reinterpret_cast<const char* (*)(int)>(::dlsym(handle_, "nvmlErrorString"));
    return function == nullptr ? "unknown error" : function(error);
  }

 private:
  void* const handle_;
};

template <typename Value>
struct Known {
  bool is_known = false;
  Value value{};
};

/// What crosses the pipe: plain bytes.
struct RawGpu {
  std::array<char, 96> name{};
  Known<bool> persistence;
  Known<bool> mig;
  Known<uint64_t> uncorrected;
  Known<bool> remap_pending;
  Known<bool> remap_failed;
  Known<int> width;
  Known<int> max_width;
  Known<uint64_t> throttle;
  Known<int> compute_mode;
  Known<uint64_t> memory_used;
  Known<uint64_t> memory_total;
};

struct RawNvml {
  bool is_there = false;
  int error = 0;
  std::array<char, 96> error_text{};
  std::array<char, 96> driver{};
  int count = 0;
  int pairs_without_peer_access = 0;
  std::array<RawGpu, kMostGpus> gpus{};
};

template <typename From, typename To>
void Take(int error, const From& value, Known<To>* known) {
  known->is_known = error == 0;
  known->value = static_cast<To>(value);
}

void AskGpu(const Library& nvml, Device device, RawGpu* gpu) {
  int enabled = 0;
  unsigned int first = 0;
  unsigned int second = 0;
  unsigned int pending = 0;
  unsigned int failed = 0;
  unsigned long long many = 0;
  nvml.Call("nvmlDeviceGetName", device, gpu->name.data(),
            static_cast<unsigned int>(gpu->name.size()));
  Take(nvml.Call("nvmlDeviceGetPersistenceMode", device, &enabled), enabled, &gpu->persistence);
  Take(nvml.Call("nvmlDeviceGetMigMode", device, &first, &second), first, &gpu->mig);
  Take(nvml.Call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kVolatile, &many), many,
       &gpu->uncorrected);
  const int remap =
      nvml.Call("nvmlDeviceGetRemappedRows", device, &first, &second, &pending, &failed);
  Take(remap, pending, &gpu->remap_pending);
  Take(remap, failed, &gpu->remap_failed);
  Take(nvml.Call("nvmlDeviceGetCurrPcieLinkWidth", device, &first), first, &gpu->width);
  Take(nvml.Call("nvmlDeviceGetMaxPcieLinkWidth", device, &first), first, &gpu->max_width);
  Take(nvml.Call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &many), many, &gpu->throttle);
  Take(nvml.Call("nvmlDeviceGetComputeMode", device, &enabled), enabled, &gpu->compute_mode);
  DeviceMemory memory{};
  const int error = nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory);
  Take(error, memory.used, &gpu->memory_used);
  Take(error, memory.total, &gpu->memory_total);
}

void AskPeers(const Library& nvml, const std::array<Device, kMostGpus>& devices, RawNvml* raw) {
  for (int one = 0; one < raw->count; ++one) {
    for (int other = one + 1; other < raw->count; ++other) {
      int status = 0;
      const int error = nvml.Call("nvmlDeviceGetP2PStatus", devices[static_cast<size_t>(one)],
                                  devices[static_cast<size_t>(other)], kPeerRead, &status);
      raw->pairs_without_peer_access += error == 0 && status != 0;
    }
  }
}

RawNvml Ask() {
  RawNvml raw;
  const Library nvml;
  raw.is_there = nvml.is_there();
  if (!raw.is_there) {
    return raw;
  }
  unsigned int count = 0;
  raw.error = nvml.Call("nvmlInit_v2");
  if (raw.error == 0) {
    raw.error = nvml.Call("nvmlDeviceGetCount_v2", &count);
  }
  if (raw.error != 0) {
    std::strncpy(raw.error_text.data(), nvml.ErrorText(raw.error), raw.error_text.size() - 1);
    return raw;
  }
  nvml.Call("nvmlSystemGetDriverVersion", raw.driver.data(),
            static_cast<unsigned int>(raw.driver.size()));
  std::array<Device, kMostGpus> devices{};
  raw.count = static_cast<int>(count < kMostGpus ? count : kMostGpus);
  for (int index = 0; index < raw.count; ++index) {
    const auto place = static_cast<size_t>(index);
    const int error = nvml.Call("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned int>(index),
                                &devices[place]);
    if (error != 0) {
      raw.error = error;
      std::strncpy(raw.error_text.data(), nvml.ErrorText(error), raw.error_text.size() - 1);
      return raw;
    }
    AskGpu(nvml, devices[place], &raw.gpus[place]);
  }
  AskPeers(nvml, devices, &raw);
  return raw;
}

template <typename Value>
std::optional<Value> Optional(const Known<Value>& known) {
  return known.is_known ? std::optional(known.value) : std::nullopt;
}

Gpu GpuOf(int index, const RawGpu& raw) {
  return {.index = index,
          .name = raw.name.data(),
          .persistence = Optional(raw.persistence),
          .mig = Optional(raw.mig),
          .uncorrected_errors = Optional(raw.uncorrected),
          .remap_pending = Optional(raw.remap_pending),
          .remap_failed = Optional(raw.remap_failed),
          .pcie_width = Optional(raw.width),
          .pcie_max_width = Optional(raw.max_width),
          .throttle_reasons = Optional(raw.throttle),
          .compute_mode = Optional(raw.compute_mode),
          .memory_used = Optional(raw.memory_used),
          .memory_total = Optional(raw.memory_total)};
}

}  // namespace

void AskNvml(GpuFacts* facts, Duration patience) {
  const absl::StatusOr<RawNvml> raw = ProbeFor<RawNvml>(Ask, patience);
  if (!raw.ok()) {
    facts->nvml = absl::IsDeadlineExceeded(raw.status()) ? NvmlState::kHangs : NvmlState::kFailed;
    facts->nvml_error = std::string(raw.status().message());
    return;
  }
  facts->nvml = !raw->is_there    ? NvmlState::kMissing
                : raw->error != 0 ? NvmlState::kFailed
                                  : NvmlState::kAnswered;
  facts->nvml_error = raw->error_text.data();
  facts->driver_version = raw->driver.data();
  facts->pairs_without_peer_access = raw->pairs_without_peer_access;
  for (int index = 0; index < raw->count && raw->error == 0; ++index) {
    facts->gpus.push_back(GpuOf(index, raw->gpus[static_cast<size_t>(index)]));
  }
}

int NcclVersion() {
  const auto ask = [] {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const auto version = library == nullptr
                             ? nullptr
                             : reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
    int number = 0;
    return version != nullptr && version(&number) == 0 ? number : 0;
  };
  return ProbeFor<int>(ask, kNcclPatience).value_or(0);
}

}  // namespace fsdprun::doctor
