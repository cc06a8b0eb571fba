#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdprun::worker::fused {

// NVRTC and the driver's library, which are opened when they are first needed: nothing is linked,
// and neither is needed to build. Their types are spelled as what they are in the ABI.

/// This machine has no library that is needed. The message says which, and where it was looked for.
class LibraryMissing : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Names, or paths, of which the first that opens is taken.
struct LibraryNames {
  std::vector<std::string> nvrtc;
  std::vector<std::string> driver;
};

/// NVRTC of CUDA 13 and 12: what LibTorch came with, which libcaffe2_nvrtc.so of its folder leads
/// to, or which lies beside it or in its neighbours among Python's packages; else one that the
/// process has loaded, or the system's. `torch_folder` is where LibTorch's libraries are, or "";
/// `cuda`: the major version of LibTorch's CUDA, 0 if that cannot be told; newer ones are left out.
/// Pure.
LibraryNames UsualLibraryNames(const std::string& torch_folder, int cuda);

/// Functions of NVRTC: nvrtcCreateProgram and so on.
struct Nvrtc {
  int (*create_program)(void** program, const char* text, const char* name, int headers,
                        const char* const* texts, const char* const* names) = nullptr;
  int (*compile_program)(void* program, int options, const char* const* texts) = nullptr;
  int (*log_size)(void* program, size_t* bytes) = nullptr;
  int (*log)(void* program, char* text) = nullptr;
  int (*cubin_size)(void* program, size_t* bytes) = nullptr;
  int (*cubin)(void* program, char* bytes) = nullptr;
  int (*destroy_program)(void** program) = nullptr;
  const char* (*error_text)(int result) = nullptr;
  std::string path;  // of the library
};

/// How many blocks, and threads of each, a kernel has.
struct LaunchShape {
  unsigned blocks = 1;
  unsigned threads = 1;  // a multiple of 32
};

/// Functions of the driver: cuInit and so on.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*device)(int* device, int ordinal) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
  int (*retain_context)(void** context, int device) = nullptr;
  int (*current_context)(void** context) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*load_module)(void** module, const void* image) = nullptr;
  int (*find_function)(void** function, void* module, const char* name) = nullptr;
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** arguments, void** extra) = nullptr;
  int (*error_text)(int result, const char** text) = nullptr;
  std::string path;
};

/// Opens the library and looks all its functions up; it stays open. Throws LibraryMissing.
Nvrtc OpenNvrtc(const std::vector<std::string>& names);
Driver OpenDriver(const std::vector<std::string>& names);

}  // namespace fsdprun::worker::fused
