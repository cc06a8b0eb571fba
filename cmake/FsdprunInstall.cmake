# What `cmake --install` installs, in two components:
#
#   fsdp_runtime   libfsdp for projects of others: public headers, the library, its package file (find_package(fsdp))
#   fsdprun        the programs, with their man pages and completions; of libfsdp what fsdp-train loads
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# --- fsdp_runtime -------------------------------------------------------------------------------------------------

function(_fsdprun_install_package)
  set(folder ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
  set(generated ${PROJECT_BINARY_DIR}/package)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in ${generated}/fsdpConfig.cmake
    INSTALL_DESTINATION ${folder} PATH_VARS CMAKE_INSTALL_LIBDIR NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  write_basic_package_version_file(${generated}/fsdpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${generated}/fsdpConfig.cmake ${generated}/fsdpConfigVersion.cmake
    DESTINATION ${folder} COMPONENT fsdp_runtime)
  install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION ${folder} COMPONENT fsdp_runtime)
endfunction()

# The backend for GPUs is loaded from beside libfsdp, by name, when it is asked for.
function(_fsdprun_install_nccl component)
  if(TARGET fsdp_nccl)
    install(TARGETS fsdp_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component} OPTIONAL)
  endif()
endfunction()

function(_fsdprun_install_runtime)
  # LibTorch is where the program that links libfsdp has it from: its folder here is not written down.
  set_property(TARGET fsdp PROPERTY INSTALL_RPATH $ORIGIN ${CMAKE_INSTALL_RPATH})
  if(TARGET fsdp_nccl)
    set_property(TARGET fsdp_nccl PROPERTY INSTALL_RPATH $ORIGIN ${CMAKE_INSTALL_RPATH})
  endif()
  install(TARGETS fsdp EXPORT fsdpTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT fsdp_runtime
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  _fsdprun_install_nccl(fsdp_runtime)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/fsdp_runtime/include/fsdp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT fsdp_runtime FILES_MATCHING PATTERN *.h)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/fsdp COMPONENT fsdp_runtime)
  _fsdprun_install_package()
endfunction()

# --- fsdprun ------------------------------------------------------------------------------------------------------

# _fsdprun_write_text(<file> <destination> <command>...): has a built program write a file, which is then installed.
function(_fsdprun_write_text file destination)
  set(path ${PROJECT_BINARY_DIR}/share/${file})
  cmake_path(GET path PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${path} COMMAND ${ARGN} > ${path} DEPENDS ${ARGV2} VERBATIM)
  install(FILES ${path} DESTINATION ${destination} COMPONENT fsdprun)
  set_property(GLOBAL APPEND PROPERTY FSDPRUN_TEXTS ${path})
endfunction()

# Man pages and completions, under the names by which man and the shells find them.
function(_fsdprun_write_texts)
  foreach(command fsdprun "fsdprun chaos" fsdp-agent "fsdpctl ps" "fsdpctl status" "fsdpctl top" "fsdpctl events" "fsdpctl logs"
          "fsdpctl stacks" "fsdpctl checkpoint now" "fsdpctl restart" "fsdpctl drain" "fsdpctl scale" "fsdpctl stop"
          "fsdpctl slurm submit" "fsdpctl slurm grow" "fsdpctl doctor" "fsdpctl ckpt list"
          "fsdpctl ckpt inspect" "fsdpctl ckpt verify" "fsdpctl ckpt diff" "fsdpctl ckpt export" "fsdpctl ckpt import"
          "fsdpctl ckpt convert")
    string(REPLACE " " "-" page ${command})
    separate_arguments(words UNIX_COMMAND ${command})
    _fsdprun_write_text(man/${page}.1 ${CMAKE_INSTALL_MANDIR}/man1 ${words} --man)
  endforeach()
  set(data ${CMAKE_INSTALL_DATADIR})
  foreach(program fsdprun fsdp-agent fsdpctl)
    _fsdprun_write_text(bash/${program} ${data}/bash-completion/completions ${program} --completion bash)
    _fsdprun_write_text(zsh/_${program} ${data}/zsh/site-functions ${program} --completion zsh)
    _fsdprun_write_text(fish/${program}.fish ${data}/fish/vendor_completions.d ${program} --completion fish)
  endforeach()
  get_property(files GLOBAL PROPERTY FSDPRUN_TEXTS)
  add_custom_target(fsdprun_texts ALL DEPENDS ${files})
  if(TARGET programs)
    add_dependencies(programs fsdprun_texts)
  endif()
endfunction()

# fsdp-train runs with the LibTorch that it was built with. Of search paths inside this project's folder, where scripts/setup
# has LibTorch, CMake keeps none for what it installs: the path is named here. CMAKE_INSTALL_RPATH, if set, says where LibTorch
# will be instead.
function(_fsdprun_install_train)
  set(libtorch ${CMAKE_INSTALL_RPATH})
  if(NOT libtorch)
    file(REAL_PATH ${LibTorch_CPU_LIBRARY} libtorch)
    cmake_path(GET libtorch PARENT_PATH libtorch)
  endif()
  file(RELATIVE_PATH libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_property(TARGET fsdp_train PROPERTY INSTALL_RPATH $ORIGIN/${libraries} ${libtorch})
  install(TARGETS fsdp_train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT fsdprun)
  install(TARGETS fsdp LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT fsdprun NAMELINK_SKIP)
  if(TARGET fsdprun_sentencepiece)
    install(TARGETS fsdprun_sentencepiece LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT fsdprun)
  endif()
  _fsdprun_install_nccl(fsdprun)
endfunction()

function(_fsdprun_install_programs)
  if(FSDPRUN_BUILD_CONTROL)
    install(TARGETS fsdprun fsdp-agent fsdp-keeper fsdp-stacks fsdpctl
      RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT fsdprun)
    _fsdprun_write_texts()
  endif()
  if(FSDPRUN_BUILD_RUNTIME)
    _fsdprun_install_train()
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/fsdprun COMPONENT fsdprun)
endfunction()

if(FSDPRUN_BUILD_RUNTIME)
  _fsdprun_install_runtime()
endif()
_fsdprun_install_programs()
