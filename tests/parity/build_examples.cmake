# Builds the programs of examples/libfsdp as a user does: each folder a project of its own, against an installed libfsdp.
#
#   cmake -D BUILD=<build folder> -D LIBRARY=<its libfsdp.so> -D LIBTORCH=<its LibTorch> -D OUTPUT=<folder>
#         [-D CCACHE=<ccache>] -P build_examples.cmake
#
# Programs go to OUTPUT/bin, the libfsdp that they load to OUTPUT/installed. One that is there and newer than its source and
# libfsdp is left: tests/install puts those there that it has built in a clean Debian.
foreach(variable BUILD LIBRARY LIBTORCH OUTPUT)
  if(NOT ${variable})
    message(FATAL_ERROR "build_examples.cmake: no -D ${variable}=")
  endif()
endforeach()
set(installed ${OUTPUT}/installed)
file(REMOVE_RECURSE ${installed})  # what is no longer installed is not to be found
execute_process(COMMAND_ERROR_IS_FATAL ANY
  COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${installed} --component fsdp_runtime)
set(options -G Ninja "-DCMAKE_PREFIX_PATH=${installed}\\;${LIBTORCH}")
if(CCACHE)
  list(APPEND options -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE})
endif()
file(GLOB_RECURSE headers ${installed}/include/*)
file(GLOB examples ${CMAKE_CURRENT_LIST_DIR}/../../examples/libfsdp/*/CMakeLists.txt)
if(NOT examples OR NOT headers)
  message(FATAL_ERROR "build_examples.cmake: found no examples, or no headers")
endif()

function(check_whether_current out program)
  set(${out} OFF PARENT_SCOPE)
  foreach(input IN LISTS headers ARGN)
    if(NOT EXISTS ${program} OR ${input} IS_NEWER_THAN ${program})
      return()
    endif()
  endforeach()
  set(${out} ON PARENT_SCOPE)
endfunction()

foreach(example IN LISTS examples)
  cmake_path(GET example PARENT_PATH folder)
  cmake_path(GET folder FILENAME name)
  check_whether_current(is_current ${OUTPUT}/bin/${name} ${LIBRARY} ${example} ${folder}/${name}.cc)
  if(NOT is_current)
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} -S ${folder} -B ${OUTPUT}/${name} ${options})
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} --build ${OUTPUT}/${name})
    file(INSTALL ${OUTPUT}/${name}/${name} DESTINATION ${OUTPUT}/bin USE_SOURCE_PERMISSIONS)
    file(TOUCH ${OUTPUT}/bin/${name})
  endif()
endforeach()
