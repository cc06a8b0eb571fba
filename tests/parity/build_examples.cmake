# Builds the programs of examples/libfsdp against an installed libfsdp, in one project, so that LibTorch's headers are read once
# for all of them. tests/install builds them as a user does: each folder a project of its own.
#
#   cmake -D BUILD=<build folder> -D LIBTORCH=<its LibTorch> -D OUTPUT=<folder> [-D CCACHE=<ccache>] -P build_examples.cmake
#
# Programs go to OUTPUT/bin, the libfsdp that they load to OUTPUT/installed.
foreach(variable BUILD LIBTORCH OUTPUT)
  if(NOT ${variable})
    message(FATAL_ERROR "build_examples.cmake: no -D ${variable}=")
  endif()
endforeach()
set(installed ${OUTPUT}/installed)
file(REMOVE_RECURSE ${installed})  # what is no longer installed is not to be found
execute_process(COMMAND_ERROR_IS_FATAL ANY
  COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${installed} --component fsdp_runtime)
cmake_path(SET folder NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../../examples/libfsdp)
file(GLOB examples RELATIVE ${folder} ${folder}/*/CMakeLists.txt)
if(NOT examples)
  message(FATAL_ERROR "build_examples.cmake: found no examples in ${folder}")
endif()

set(project "cmake_minimum_required(VERSION 3.25)\nproject(examples CXX)\nset(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${OUTPUT}/bin)\n")
set(first)
foreach(example IN LISTS examples)
  cmake_path(GET example PARENT_PATH name)
  string(APPEND project "add_subdirectory(${folder}/${name} ${name})\n")
  if(first)
    string(APPEND project "target_precompile_headers(${name} REUSE_FROM ${first})\n")
  else()
    string(APPEND project "target_precompile_headers(${name} PRIVATE <torch/torch.h>)\n")
    set(first ${name})
  endif()
endforeach()
file(CONFIGURE OUTPUT ${OUTPUT}/project/CMakeLists.txt CONTENT "${project}" @ONLY)
set(options -G Ninja "-DCMAKE_PREFIX_PATH=${installed}\\;${LIBTORCH}")
if(CCACHE)
  list(APPEND options -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
endif()
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} -S ${OUTPUT}/project -B ${OUTPUT}/build ${options})
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} --build ${OUTPUT}/build)
