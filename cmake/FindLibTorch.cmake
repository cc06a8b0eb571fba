# LibTorch without find_package(Torch), whose CUDA builds demand a CUDA toolkit.
# Looked for in TORCH_DIR (cache or environment), then in the PyPI wheel of .venv.
#   LibTorch::torch   headers, libtorch_cpu, libc10 (all that CPU training needs)
#   LibTorch::cuda    adds libtorch_cuda, libc10_cuda and the CUDA and NCCL headers; only if LibTorch_CUDA_FOUND
#   LibTorch_CUDA_PROBLEM   why there is no LibTorch::cuda, where LibTorch is a CUDA build
#   LibTorch_VERSION, LibTorch_CXX11_ABI   its version, and 1 or 0: with which _GLIBCXX_USE_CXX11_ABI it was built
#   LibTorch_DEFINITIONS   macros that its headers need to be used with
set(TORCH_DIR "$ENV{TORCH_DIR}" CACHE PATH "LibTorch root (the folder with include/ and lib/)")
# What was found is cached, and must be looked for again when TORCH_DIR names another one.
if(NOT "${TORCH_DIR}" STREQUAL "${LibTorch_FOUND_FOR}")
  foreach(part INCLUDE_DIR CPU_LIBRARY C10_LIBRARY CUDA_LIBRARY C10_CUDA_LIBRARY CUDA_INCLUDE_DIR NCCL_INCLUDE_DIR
      CRT_INCLUDE_DIR CCCL_INCLUDE_DIR CUDA_HEADERS_COMPILE)
    unset(LibTorch_${part} CACHE)
  endforeach()
endif()
set(LibTorch_FOUND_FOR "${TORCH_DIR}" CACHE INTERNAL "The TORCH_DIR that the other entries belong to")
if(TORCH_DIR AND NOT EXISTS ${TORCH_DIR}/include/torch/csrc/api/include/torch/torch.h)
  message(FATAL_ERROR "TORCH_DIR=${TORCH_DIR} has no include/torch/csrc/api/include/torch/torch.h; name a LibTorch root")
endif()
file(GLOB _wheel_roots ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
  HINTS ${TORCH_DIR} ${_wheel_roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
get_filename_component(LibTorch_ROOT "${LibTorch_INCLUDE_DIR}" DIRECTORY)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)

# What installed libfsdp demands of a LibTorch (fsdpConfig.cmake.in): the version of the headers, and whether the library's
# functions take the strings of the C++11 ABI.
if(LibTorch_INCLUDE_DIR AND LibTorch_C10_LIBRARY)
  set(_version_header ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
  if(NOT EXISTS ${_version_header})  # before 2.9
    set(_version_header ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h)
  endif()
  file(READ ${_version_header} _version_text)
  string(REGEX MATCH "define TORCH_VERSION[ \\\n]+\"([0-9.]+)" _ "${_version_text}")
  set(LibTorch_VERSION ${CMAKE_MATCH_1})
  file(STRINGS ${LibTorch_C10_LIBRARY} _cxx11_names REGEX "_ZNK?3c10.*NSt7__cxx1112basic_string" LIMIT_COUNT 1)
  set(LibTorch_DEFINITIONS USE_DISTRIBUTED USE_C10D_GLOO)
  set(LibTorch_CXX11_ABI 1)
  if(NOT _cxx11_names)
    set(LibTorch_CXX11_ABI 0)
    list(APPEND LibTorch_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=0)
  endif()
endif()

include(CheckCXXSourceCompiles)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR LibTorch_VERSION
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup, or pass -DTORCH_DIR=<a LibTorch root>")

# Sets `out` to the folders of CUDA toolkits' headers, in order: CUDA_HOME's, CUDA_PATH's, that of the nvcc in PATH, /usr/local/cuda*.
function(_libtorch_toolkit_includes out)
  file(GLOB roots /usr/local/cuda /usr/local/cuda-*)
  find_program(nvcc nvcc NO_CACHE)
  if(nvcc)
    file(REAL_PATH ${nvcc} nvcc)
    cmake_path(GET nvcc PARENT_PATH folder)
    cmake_path(GET folder PARENT_PATH folder)
    list(PREPEND roots ${folder})
  endif()
  set(includes)
  foreach(root IN ITEMS $ENV{CUDA_HOME} $ENV{CUDA_PATH} LISTS roots)
    file(GLOB of_targets ${root}/targets/*/include)
    list(APPEND includes ${root}/include ${of_targets})
  endforeach()
  set(${out} ${includes} PARENT_SCOPE)
endfunction()

# The headers of CUDA and NCCL: sets _cuda_includes, the wheel's first, or LibTorch_CUDA_PROBLEM.
#
# PyTorch's wheel brings those of CUDA's runtime but not all that they include: crt/ and nv/ are of packages of their own, which
# scripts/setup installs with it (scripts/requirements.txt), or of a CUDA toolkit.
macro(_libtorch_find_cuda_headers)
  file(GLOB _nvidia_includes ${LibTorch_ROOT}/../nvidia/*/include)
  _libtorch_toolkit_includes(_toolkit_includes)
  find_path(LibTorch_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${_nvidia_includes} ${_toolkit_includes} NO_DEFAULT_PATH)
  find_path(LibTorch_NCCL_INCLUDE_DIR nccl.h HINTS ${_nvidia_includes} NO_DEFAULT_PATH)
  # nvidia/cu13 has all headers of CUDA 13 in one folder: where those of the runtime are of another CUDA, none in it fits them.
  list(FILTER _nvidia_includes EXCLUDE REGEX "/nvidia/cu[0-9]+/include$")
  find_path(LibTorch_CRT_INCLUDE_DIR crt/host_defines.h HINTS ${LibTorch_CUDA_INCLUDE_DIR} ${_nvidia_includes} ${_toolkit_includes})
  find_path(LibTorch_CCCL_INCLUDE_DIR nv/target HINTS ${LibTorch_CUDA_INCLUDE_DIR} ${_nvidia_includes} ${_toolkit_includes}
    PATH_SUFFIXES cccl)
  set(_cuda_includes)
  set(_cuda_missing)
  foreach(part NCCL=nccl.h CUDA=cuda_runtime_api.h CRT=crt/host_defines.h CCCL=nv/target)
    string(REGEX REPLACE "=.*" "" header ${part})
    if(LibTorch_${header}_INCLUDE_DIR)
      list(APPEND _cuda_includes ${LibTorch_${header}_INCLUDE_DIR})
    else()
      string(REGEX REPLACE ".*=" "" header ${part})
      list(APPEND _cuda_missing ${header})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES _cuda_includes)
  set(LibTorch_CUDA_PROBLEM "")
  # What is not found may be in a folder that the compiler knows; what is found may be too old, or not fit together.
  set(CMAKE_REQUIRED_INCLUDES ${_cuda_includes})
  set(CMAKE_REQUIRED_QUIET ON)
  check_cxx_source_compiles("#include <nccl.h>\nint main() { return sizeof(decltype(&ncclCommRevoke)) > 0 ? 0 : 1; }"
    LibTorch_CUDA_HEADERS_COMPILE)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_QUIET)
  if(NOT LibTorch_CUDA_HEADERS_COMPILE)
    unset(LibTorch_CUDA_HEADERS_COMPILE CACHE)  # it is tried again once they are installed
    if(_cuda_missing)
      list(JOIN _cuda_missing ", " _cuda_missing)
      string(CONCAT LibTorch_CUDA_PROBLEM "not found beside LibTorch of ${LibTorch_ROOT}, in a CUDA toolkit (CUDA_HOME, nvcc's, "
        "/usr/local/cuda*): ${_cuda_missing}. The compiler has none, or they do not fit. Install a CUDA toolkit, or, for the Python that "
        "has torch, the packages nvidia-cuda-crt (crt/) and nvidia-cuda-cccl (nv/), of which CUDA 12 has crt/ in nvidia-cuda-nvcc-cu12")
    else()
      list(JOIN _cuda_includes ", " _cuda_folders)
      string(CONCAT LibTorch_CUDA_PROBLEM "do not compile, or have an NCCL without ncclCommRevoke: ${_cuda_folders}. "
        "Install those of the NCCL that LibTorch of ${LibTorch_ROOT} was built with")
    endif()
    string(APPEND LibTorch_CUDA_PROBLEM ". What the compiler said: ${CMAKE_BINARY_DIR}/CMakeFiles/CMakeError.log")
    message(STATUS "No NCCL backend: headers of CUDA ${LibTorch_CUDA_PROBLEM}")
  endif()
endmacro()

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::torch SYSTEM INTERFACE
    ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_compile_definitions(LibTorch::torch INTERFACE ${LibTorch_DEFINITIONS})
  target_link_libraries(LibTorch::torch INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY})

  find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${LibTorch_ROOT}/lib NO_DEFAULT_PATH)
  if(LibTorch_CUDA_LIBRARY)
    _libtorch_find_cuda_headers()
  endif()
  if(LibTorch_CUDA_LIBRARY AND NOT LibTorch_CUDA_PROBLEM)
    set(LibTorch_CUDA_FOUND TRUE)
    add_library(LibTorch::cuda INTERFACE IMPORTED GLOBAL)
    target_include_directories(LibTorch::cuda SYSTEM INTERFACE ${_cuda_includes})
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::torch ${LibTorch_CUDA_LIBRARY}
      ${LibTorch_C10_CUDA_LIBRARY})
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY
  LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY LibTorch_CUDA_INCLUDE_DIR LibTorch_NCCL_INCLUDE_DIR
  LibTorch_CRT_INCLUDE_DIR LibTorch_CCCL_INCLUDE_DIR)
