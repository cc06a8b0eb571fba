#include "worker/models/fused/cuda/kernel_cache.h"

#include <memory>
#include <utility>

namespace fsdprun::worker::fused {
namespace {

// CUdevice_attribute.
constexpr int kMultiprocessorCount = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

constexpr const char* kAdvice = "; model.kernels=reference needs none of these kernels";

/// What to do about a result of the driver's. Errors of a kernel, CUresult 700 to 719, are told to
/// whoever asks next; one while a graph is captured, 900 to 908, is of what a capture may not do.
std::string AdviceFor(int result) {
  if (result >= 900 && result <= 908) {
    return "; a kernel is loaded when it is first launched, which a capture has no room for: run a "
           "step of the same shapes before a CUDA graph is captured";
  }
  const bool may_be_earlier = result == 700 || result == 702 || (result >= 709 && result <= 719);
  return (may_be_earlier ? "; an earlier operation on the device may be what failed: with "
                           "CUDA_LAUNCH_BLOCKING=1 in the environment the first that fails is named"
                         : "") +
         std::string(kAdvice);
}

std::string NameOf(int device) { return "CUDA device " + std::to_string(device); }

/// Of the compilation that has failed; "" if there is none.
std::string LogOf(const Nvrtc& nvrtc, void* program) {
  size_t bytes = 0;
  if (nvrtc.log_size(program, &bytes) != 0 || bytes <= 1) {
    return "";
  }
  std::string log(bytes, '\0');
  nvrtc.log(program, log.data());
  return "\n" + log.substr(0, log.find('\0'));
}

}  // namespace

std::string CompileKernels(const Nvrtc& nvrtc, const KernelSource& source,
                           const std::string& architecture, const std::string& device) {
  void* program = nullptr;
  const auto check = [&](int result, const std::string& log = "") {
    if (result != 0) {
      throw KernelError(std::string("cannot compile ") + source.name + " for " + device + " (" +
                        architecture + ") with " + nvrtc.path + ": " + nvrtc.error_text(result) +
                        log + kAdvice);
    }
  };
  const char* const texts[] = {kRowsHeader.text, kBlockSizesHeader.text};
  const char* const names[] = {kRowsHeader.name, kBlockSizesHeader.name};
  check(nvrtc.create_program(&program, source.text, source.name, 2, texts, names));
  const auto destroy = [&nvrtc](void** made) { nvrtc.destroy_program(made); };
  const std::unique_ptr<void*, decltype(destroy)> owned(&program, destroy);
  const std::string option = "--gpu-architecture=" + architecture;
  const char* const options[] = {option.c_str(), "--std=c++17"};
  const int result = nvrtc.compile_program(program, 2, options);
  check(result, result == 0 ? "" : LogOf(nvrtc, program));
  size_t bytes = 0;
  check(nvrtc.cubin_size(program, &bytes));
  std::string cubin(bytes, '\0');
  check(nvrtc.cubin(program, cubin.data()));
  return cubin;
}

KernelCache::KernelCache(Nvrtc nvrtc, Driver driver)
    : nvrtc_(std::move(nvrtc)), driver_(std::move(driver)) {}

void KernelCache::Launch(int device, void* stream, const KernelCall& call) {
  void* function = nullptr;
  const Device* on = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Device& found = DeviceOf(device);
    EnterContext(found);
    function = FunctionOf(found, *call.source, call.kernel);
    on = &found;
  }
  const LaunchShape& shape = call.shape;
  CheckDriver(driver_.launch(function, shape.blocks, 1, 1, shape.threads, 1, 1, 0, stream,
                             call.arguments, nullptr),
              "launch kernel " + call.kernel + " with " + std::to_string(shape.blocks) +
                  " blocks of " + std::to_string(shape.threads) + " threads",
              *on);
}

int KernelCache::MultiprocessorsOf(int device) {
  const std::lock_guard lock(mutex_);
  return DeviceOf(device).multiprocessors;
}

KernelCache::Device& KernelCache::DeviceOf(int number) {
  const auto found = devices_.find(number);
  return found != devices_.end() ? found->second
                                 : devices_.emplace(number, FindDevice(number)).first->second;
}

KernelCache::Device KernelCache::FindDevice(int number) {
  Device device;
  device.number = number;
  CheckDriver(driver_.init(0), "initialise the driver", device);
  int handle = 0;
  CheckDriver(driver_.device(&handle, number), "find the device", device);
  const int major = AttributeOf(device, handle, kCapabilityMajor);
  const int minor = AttributeOf(device, handle, kCapabilityMinor);
  device.architecture = "sm_" + std::to_string(major) + std::to_string(minor);
  device.multiprocessors = AttributeOf(device, handle, kMultiprocessorCount);
  CheckDriver(driver_.retain_context(&device.context, handle), "get the primary context", device);
  return device;
}

int KernelCache::AttributeOf(const Device& device, int handle, int attribute) {
  int value = 0;
  CheckDriver(driver_.attribute(&value, attribute, handle),
              "read attribute " + std::to_string(attribute), device);
  return value;
}

// The runtime makes a context current when it first needs one: a thread of autograd's may have
// allocated nothing yet.
void KernelCache::EnterContext(const Device& device) {
  void* current = nullptr;
  CheckDriver(driver_.current_context(&current), "find the current context", device);
  if (current != device.context) {
    CheckDriver(driver_.set_context(device.context), "make the device's context current", device);
  }
}

void* KernelCache::FunctionOf(Device& device, const KernelSource& source,
                              const std::string& kernel) {
  const auto found = device.functions.find(kernel);
  if (found != device.functions.end()) {
    return found->second;
  }
  void* const module = ModuleOf(device, source);
  void* function = nullptr;
  CheckDriver(driver_.find_function(&function, module, kernel.c_str()),
              "find kernel " + kernel + " of " + source.name, device);
  return device.functions[kernel] = function;
}

void* KernelCache::ModuleOf(Device& device, const KernelSource& source) {
  const auto found = device.modules.find(source.name);
  if (found != device.modules.end()) {
    return found->second;
  }
  const std::string& cubin = CubinOf(device, source);
  void* module = nullptr;
  CheckDriver(driver_.load_module(&module, cubin.data()),
              std::string("load the kernels of ") + source.name, device);
  return device.modules[source.name] = module;
}

const std::string& KernelCache::CubinOf(const Device& device, const KernelSource& source) {
  const std::pair<std::string, std::string> key = {device.architecture, source.name};
  const auto found = cubins_.find(key);
  return found != cubins_.end()
             ? found->second
             : cubins_
                   .emplace(key, CompileKernels(nvrtc_, source, device.architecture,
                                                NameOf(device.number)))
                   .first->second;
}

void KernelCache::CheckDriver(int result, const std::string& attempt, const Device& device) const {
  if (result == 0) {
    return;
  }
  const char* text = nullptr;
  if (driver_.error_text(result, &text) != 0 || text == nullptr) {
    text = "an error that the driver does not know";
  }
  throw KernelError(NameOf(device.number) +
                    (device.architecture.empty() ? "" : " (" + device.architecture + ")") +
                    ": cannot " + attempt + ": " + text + " (" + std::to_string(result) + ")" +
                    AdviceFor(result));
}

}  // namespace fsdprun::worker::fused
