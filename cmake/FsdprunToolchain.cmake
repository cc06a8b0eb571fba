# Compiler launcher, linker, warnings and sanitizers, attached to targets through fsdprun_options.
find_program(FSDPRUN_CCACHE ccache)
if(FSDPRUN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these relaxations; see ccache's manual, "Precompiled headers". In its depend mode nothing is
  # preprocessed before it is compiled, which is a tenth of the time where nothing is cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${FSDPRUN_CCACHE})
endif()

add_library(fsdprun_options INTERFACE)
target_include_directories(fsdprun_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(fsdprun_options INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers
  $<$<BOOL:${FSDPRUN_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

# Messages name a source by its path in the project, and so does debug information, where there is any: what is installed does
# not know the folder where it was built. With sanitizers, of which nothing is installed, stacks have whole paths.
set(FSDPRUN_PREFIX_MAP -fmacro-prefix-map)
if(NOT FSDPRUN_SANITIZE)
  set(FSDPRUN_PREFIX_MAP $<IF:$<CONFIG:Release>,-fmacro-prefix-map,-ffile-prefix-map>)
  target_compile_options(fsdprun_options INTERFACE $<$<NOT:$<CONFIG:Release>>:-fdebug-prefix-map=${PROJECT_BINARY_DIR}=.>)
endif()
target_compile_options(fsdprun_options INTERFACE
  ${FSDPRUN_PREFIX_MAP}=${PROJECT_SOURCE_DIR}/= ${FSDPRUN_PREFIX_MAP}=${PROJECT_BINARY_DIR}/=)

find_program(FSDPRUN_MOLD mold)
if(FSDPRUN_MOLD AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_link_options(fsdprun_options INTERFACE -fuse-ld=mold)
endif()

if(FSDPRUN_SANITIZE)
  target_compile_options(fsdprun_options INTERFACE
    -fsanitize=${FSDPRUN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(fsdprun_options INTERFACE -fsanitize=${FSDPRUN_SANITIZE})
endif()
