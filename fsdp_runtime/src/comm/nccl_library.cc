#include "fsdp_runtime/src/comm/nccl_library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fsdp/process_group.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace fsdp {
namespace {

std::filesystem::path own_folder() {
  Dl_info info{};
  TORCH_CHECK(::dladdr(reinterpret_cast<const void*>(&init_process_group), &info) != 0,
              "init_process_group: cannot find libfsdp's own directory");
  return std::filesystem::path(info.dli_fname).parent_path();
}

bool has_nvidia_driver() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
}

/// Where the LibTorch of this process is, which programs find by a search path of their own.
std::filesystem::path libtorch_folder() {
  void* const loaded = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  const link_map* place = nullptr;
  TORCH_CHECK(loaded != nullptr && ::dlinfo(loaded, RTLD_DI_LINKMAP, &place) == 0,
              "init_process_group: cannot find LibTorch's own directory");
  const std::filesystem::path folder = std::filesystem::path(place->l_name).parent_path();
  ::dlclose(loaded);
  return folder;
}

struct NcclLibrary {
  void* handle = nullptr;
  std::string failure;
};

NcclLibrary open_library(const std::filesystem::path& file) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  return {handle, handle == nullptr ? ::dlerror() : ""};
}

/// That of our backend names LibTorch's, but not where it is.
NcclLibrary open_with_libtorch() {
  const std::filesystem::path own = own_folder() / kNcclLibrary;
  if (::access(own.c_str(), F_OK) != 0) {
    return {nullptr, "there is no " + own.string()};
  }
  const NcclLibrary cuda = open_library(libtorch_folder() / "libtorch_cuda.so");
  return cuda.handle == nullptr ? cuda : open_library(own);
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = open_with_libtorch();
  return library;
}

template <typename Entry>
Entry nccl_entry(void* library, const char* name) {
  auto entry = reinterpret_cast<Entry>(::dlsym(library, name));
  TORCH_CHECK(entry != nullptr, kNcclLibrary, " beside libfsdp has no entry ", name,
              "; it is of another version: install both together");
  return entry;
}

// NCCL and LibTorch read these when the first communicator is made.
//
// Each lane has an NCCL communicator. Kernels of two communicators can deadlock if ranks launch
// them in different orders; NCCL (2.26 and newer) keeps the order in which they are issued.
//
// NCCL would register the memory of operations that a graph captures with its peers, which eagerly
// it does not: with LibTorch's expandable segments that has ended in faults of the device
// (torchtitan#3306), and other channels give sums another order than those of a step that is not
// captured.
//
// LibTorch's threads would end the process when an operation fails or takes too long. DeviceWatch
// takes their place: the process can go on with the ranks that are left. That replaces what is set,
// because launchers give every worker TORCH_NCCL_ASYNC_ERROR_HANDLING=1. It has precedence over its
// older name NCCL_ASYNC_ERROR_HANDLING.
//
// Its watchdog, which the end of a group waits for, sleeps for a minute behind an error that NCCL
// has reported, so that other threads can write down what each rank was doing. They do not run
// here.
void set_nccl_environment() {
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  ::setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/1);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/1);
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", /*overwrite=*/0);
}

}  // namespace

std::shared_ptr<Collectives> make_nccl(const NcclFormation& formation) {
  set_nccl_environment();
  TORCH_CHECK(has_nvidia_driver(),
              "init_process_group: backend nccl needs a GPU and this machine has no NVIDIA driver; "
              "choose backend gloo or shm to train on CPUs");
  const NcclLibrary& library = nccl_library();
  TORCH_CHECK(library.handle != nullptr, "init_process_group: backend nccl needs ", kNcclLibrary,
              " beside libfsdp and a CUDA build of LibTorch (", library.failure,
              "); choose backend gloo or shm to train on CPUs");
  const auto make = nccl_entry<MakeNcclCollectives>(library.handle, kNcclEntry);
  const std::unique_ptr<std::shared_ptr<Collectives>> made(make(formation));
  return *made;
}

int64_t cuda_device_count() {
  if (!has_nvidia_driver()) {
    return 0;
  }
  const NcclLibrary& library = nccl_library();
  const int64_t devices = library.handle == nullptr ? 0
                                                    : nccl_entry<CountCudaDevices>(
                                                          library.handle, kCountCudaDevicesEntry)();
  if (devices == 0) {
    TORCH_WARN_ONCE("this machine has an NVIDIA driver, but no GPU can be used: ",
                    library.handle == nullptr
                        ? library.failure
                        : "none is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  return devices;
}

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device) {
  TORCH_CHECK(cuda_device_count() > 0, "make_device_graph: ", device,
              ", but this machine has no GPU that can be used; on the CPU ask for one of cpu");
  const auto make = nccl_entry<MakeCudaGraph>(nccl_library().handle, kCudaGraphEntry);
  return std::unique_ptr<DeviceGraph>(make(device));
}

}  // namespace fsdp
