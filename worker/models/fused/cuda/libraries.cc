#include "worker/models/fused/cuda/libraries.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace fsdprun::worker::fused {
namespace {

struct Library {
  void* handle = nullptr;
  std::string path;  // a name, until a function of it was found
};

/// Where the function is, which may be in a library that the one of this name needs.
std::string PathOf(const void* function, const std::string& name) {
  Dl_info place = {};
  return ::dladdr(function, &place) != 0 && place.dli_fname != nullptr ? place.dli_fname : name;
}

Library Open(const char* what, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return {handle, name};
    }
  }
  std::string tried;
  for (const std::string& name : names) {
    tried += (tried.empty() ? "" : ", ") + name;
  }
  throw LibraryMissing(std::string("cannot open ") + what + ", of which were tried: " + tried);
}

template <typename Function>
void Find(Library& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library.handle, name));
  if (function == nullptr) {
    throw LibraryMissing(library.path + " has no function " + name +
                         "; it is of another version than 12 or 13");
  }
  library.path = PathOf(reinterpret_cast<const void*>(function), library.path);
}

/// NVRTC opens a library of its own by its name alone; the one beside it need not be where the
/// system looks. Without one, NVRTC says so when it compiles.
void OpenBuiltins(const std::string& nvrtc) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::directory_iterator file(fs::path(nvrtc).parent_path(), error), end;
       !error && file != end; file.increment(error)) {
    if (file->path().filename().string().starts_with("libnvrtc-builtins.so.")) {
      ::dlopen(file->path().c_str(), RTLD_NOW | RTLD_LOCAL);
    }
  }
}

}  // namespace

LibraryNames UsualLibraryNames(const std::string& torch_folder, int cuda) {
  LibraryNames names;
  names.driver = {"libcuda.so.1"};
  const std::string packages = torch_folder + "/../../nvidia/";
  if (!torch_folder.empty()) {
    // Linked with the NVRTC of LibTorch's CUDA, and finds it: in Python's packages by its RPATH, in
    // LibTorch's archives beside it, where its name has a hash that nobody else knows.
    names.nvrtc.push_back(torch_folder + "/libcaffe2_nvrtc.so");
  }
  // By fixed names where that is missing. Not a newer one than LibTorch's CUDA: its driver may be
  // as old, and loads no kernels of a newer NVRTC, but those of an older one.
  if (cuda != 12) {
    if (!torch_folder.empty()) {
      names.nvrtc.push_back(torch_folder + "/libnvrtc.so.13");
      names.nvrtc.push_back(packages + "cu13/lib/libnvrtc.so.13");
    }
    names.nvrtc.emplace_back("libnvrtc.so.13");
  }
  if (!torch_folder.empty()) {
    names.nvrtc.push_back(torch_folder + "/libnvrtc.so.12");
    names.nvrtc.push_back(packages + "cuda_nvrtc/lib/libnvrtc.so.12");
  }
  names.nvrtc.emplace_back("libnvrtc.so.12");
  return names;
}

Nvrtc OpenNvrtc(const std::vector<std::string>& names) {
  Library library = Open("NVRTC, the compiler of CUDA's kernels", names);
  Nvrtc nvrtc;
  Find(library, "nvrtcCreateProgram", nvrtc.create_program);
  Find(library, "nvrtcCompileProgram", nvrtc.compile_program);
  Find(library, "nvrtcGetProgramLogSize", nvrtc.log_size);
  Find(library, "nvrtcGetProgramLog", nvrtc.log);
  Find(library, "nvrtcGetCUBINSize", nvrtc.cubin_size);
  Find(library, "nvrtcGetCUBIN", nvrtc.cubin);
  Find(library, "nvrtcDestroyProgram", nvrtc.destroy_program);
  Find(library, "nvrtcGetErrorString", nvrtc.error_text);
  nvrtc.path = library.path;
  OpenBuiltins(nvrtc.path);
  return nvrtc;
}

Driver OpenDriver(const std::vector<std::string>& names) {
  Library library = Open("the library of the NVIDIA driver", names);
  Driver driver;
  Find(library, "cuInit", driver.init);
  Find(library, "cuDeviceGet", driver.device);
  Find(library, "cuDeviceGetAttribute", driver.attribute);
  Find(library, "cuDevicePrimaryCtxRetain", driver.retain_context);
  Find(library, "cuCtxGetCurrent", driver.current_context);
  Find(library, "cuCtxSetCurrent", driver.set_context);
  Find(library, "cuModuleLoadData", driver.load_module);
  Find(library, "cuModuleGetFunction", driver.find_function);
  Find(library, "cuLaunchKernel", driver.launch);
  Find(library, "cuGetErrorString", driver.error_text);
  driver.path = library.path;
  return driver;
}

}  // namespace fsdprun::worker::fused
