# Every library of the project is declared with the side it belongs to and its layer. The configure step fails on an
# edge that points upward or from one side to the other: the architecture is checked before anything is compiled.
#
#   fsdprun_library(NAME fsdprun_cli SIDE control LAYER 2 SRCS ... [HDRS ...] [DEPS fsdprun_base ...] [EXTERNAL absl::...])
#
# SIDE    shared  (of both: neither torch nor gRPC), control (gRPC, never torch) or runtime (torch, never gRPC).
# LAYER   a library may depend on project libraries of its own layer or below.
# DEPS    project libraries; EXTERNAL third-party targets (never LibTorch:: on the control side, never gRPC, protobuf or
#         Abseil on the runtime side, none of them on the shared side).
# SHARED  a shared library, which is what others link: what it is made of does not reach them. Who uses a part of it beside it
#         names that under DEPS.
# COMPUTES  of the control plane: what simulated clusters spend their time in.

# `programs` is what a user runs; scripts/quickstart builds nothing else.
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(programs)
endif()

# Sets `out` to ON if a target that matches `pattern` is among the arguments, or comes with one of the project's libraries
# among them, which remember it in their property `property`.
function(_fsdprun_reaches out pattern property)
  set(${out} OFF PARENT_SCOPE)
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "${pattern}")
      set(${out} ON PARENT_SCOPE)
    elseif(TARGET ${dep})
      get_target_property(reaches ${dep} ${property})
      if(reaches STREQUAL "ON")
        set(${out} ON PARENT_SCOPE)
      endif()
    endif()
  endforeach()
endfunction()

macro(_fsdprun_needs_torch out)
  _fsdprun_reaches(${out} "^LibTorch::" FSDPRUN_TORCH ${ARGN})
endmacro()

macro(_fsdprun_needs_rpc out)
  _fsdprun_reaches(${out} "^(gRPC|protobuf)::" FSDPRUN_RPC ${ARGN})
endmacro()

# What a side must not link, and project libraries that came in where nothing would look at their layer.
function(_fsdprun_check_external name side)
  set(forbidden_control "^LibTorch::")
  set(forbidden_runtime "^(gRPC|protobuf|absl)::")
  set(forbidden_shared "^(LibTorch|gRPC|protobuf|absl)::")
  foreach(dep IN LISTS ARGN)
    if(dep MATCHES "${forbidden_${side}}")
      message(FATAL_ERROR "${name}: the ${side} side must not link ${dep}")
    endif()
    if(TARGET ${dep})
      get_target_property(dep_side ${dep} FSDPRUN_SIDE)
      if(dep_side)
        message(FATAL_ERROR "${name}: ${dep} is a project library; pass it under DEPS")
      endif()
    endif()
  endforeach()
endfunction()

function(_fsdprun_check_side command name side)
  if(NOT side MATCHES "^(shared|control|runtime)$")
    message(FATAL_ERROR "${command}(${name}): SIDE is shared, control or runtime, not '${side}'")
  endif()
endfunction()

macro(_fsdprun_check_arguments command)
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "${command}(${ARG_NAME}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
endmacro()

function(_fsdprun_check_edges name side layer)
  foreach(dep IN LISTS ARGN)
    if(NOT TARGET ${dep})
      message(FATAL_ERROR "${name} depends on ${dep}, which is not declared (yet): order the folders downward")
    endif()
    get_target_property(dep_layer ${dep} FSDPRUN_LAYER)
    get_target_property(dep_side ${dep} FSDPRUN_SIDE)
    if(dep_layer STREQUAL "dep_layer-NOTFOUND")
      message(FATAL_ERROR "${name}: ${dep} is not a project library; pass it under EXTERNAL")
    endif()
    if(dep_layer GREATER layer)
      message(FATAL_ERROR "upward edge: ${name} (layer ${layer}) depends on ${dep} (layer ${dep_layer})")
    endif()
    if(NOT dep_side STREQUAL side AND NOT dep_side STREQUAL "shared")
      message(FATAL_ERROR "edge across sides: ${name} (${side}) depends on ${dep} (${dep_side})")
    endif()
  endforeach()
endfunction()

function(fsdprun_library)
  cmake_parse_arguments(ARG "SHARED;COMPUTES" "NAME;SIDE;LAYER" "SRCS;HDRS;DEPS;EXTERNAL" ${ARGN})
  _fsdprun_check_arguments(fsdprun_library)
  _fsdprun_check_side(fsdprun_library "${ARG_NAME}" "${ARG_SIDE}")
  if(NOT ARG_LAYER MATCHES "^[0-9]+$")
    message(FATAL_ERROR "fsdprun_library(${ARG_NAME}): LAYER is a number, not '${ARG_LAYER}'")
  endif()
  _fsdprun_check_edges(${ARG_NAME} ${ARG_SIDE} ${ARG_LAYER} ${ARG_DEPS})
  _fsdprun_check_external(${ARG_NAME} ${ARG_SIDE} ${ARG_EXTERNAL})
  if(NOT ARG_SRCS)
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE fsdprun_options ${ARG_DEPS} ${ARG_EXTERNAL})
  else()
    set(kind STATIC)
    set(scope PUBLIC)
    if(ARG_SHARED)
      set(kind SHARED)
      set(scope PRIVATE)
    endif()
    add_library(${ARG_NAME} ${kind} ${ARG_SRCS} ${ARG_HDRS})
    target_link_libraries(${ARG_NAME} ${scope} fsdprun_options ${ARG_DEPS} ${ARG_EXTERNAL})
  endif()
  _fsdprun_record(${ARG_NAME} ${CMAKE_CURRENT_SOURCE_DIR} ${ARG_SIDE} ${ARG_LAYER} ${ARG_DEPS})
  _fsdprun_needs_torch(torch ${ARG_DEPS} ${ARG_EXTERNAL})
  _fsdprun_needs_rpc(rpc ${ARG_DEPS} ${ARG_EXTERNAL})
  set_target_properties(${ARG_NAME} PROPERTIES
    FSDPRUN_LAYER ${ARG_LAYER} FSDPRUN_SIDE ${ARG_SIDE} FSDPRUN_TORCH ${torch} FSDPRUN_RPC ${rpc})
  if(torch AND ARG_SRCS)
    _fsdprun_reuse_torch_headers(${ARG_NAME})
  elseif(rpc AND ARG_SRCS)
    _fsdprun_compile_as_control(${ARG_NAME} fsdprun_rpc_headers ${ARG_COMPUTES})
  elseif(ARG_SIDE STREQUAL "control" AND ARG_SRCS)
    _fsdprun_compile_as_control(${ARG_NAME} fsdprun_base_headers ${ARG_COMPUTES})
  endif()
endfunction()

# Restricts what a shared library exports to what the version script names (and the compiler does not hide).
function(fsdprun_export_only name script)
  target_link_options(${name} PRIVATE -Wl,--version-script=${script})
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${script})
endfunction()

# Headers of the control plane that are precompiled: in `header`, which needs the targets that follow `source`. What is
# compiled with a sanitizer waits for the network, for other processes and for files: to optimise it would take as long as all
# the rest of its compilation. What COMPUTES is optimised, and so can share no precompiled header there.
function(fsdprun_precompile_for_control name header source)
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE fsdprun_options ${ARGN})
  target_precompile_headers(${name} PRIVATE ${header})
  _fsdprun_agree_as_control(${name})
endfunction()

# _fsdprun_compile_as_control(<name> <target of the headers> <computes>)
function(_fsdprun_compile_as_control name headers computes)
  if(FSDPRUN_SANITIZE AND computes)
    target_compile_options(${name} PRIVATE -O1)
  elseif(TARGET ${headers})
    target_precompile_headers(${name} REUSE_FROM ${headers})
    _fsdprun_agree_as_control(${name})
  endif()
endfunction()

# What a precompiled header and its users must agree in.
function(_fsdprun_agree_as_control name)
  target_compile_options(${name} PRIVATE -fPIC)
  if(FSDPRUN_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
endfunction()

# Parsing LibTorch's headers costs about ten seconds a file: libfsdp precompiles them once for all that links it
# but tests, which have headers of their own.
# Objects of one precompiled header agree in how they are addressed and seen, hence the two settings.
function(_fsdprun_reuse_torch_headers name)
  if(TARGET fsdp AND NOT name STREQUAL "fsdp")
    target_precompile_headers(${name} REUSE_FROM fsdp)
    target_compile_options(${name} PRIVATE -fPIC -fvisibility=hidden -fvisibility-inlines-hidden)
  endif()
endfunction()

# Writes what was declared down, one "name|folder|side|layer|dep,dep" per line: tests/arch holds the #includes against it, and
# scripts/lib/select_tests.py takes from it what a change reaches.
function(fsdprun_write_graph file)
  get_property(lines GLOBAL PROPERTY FSDPRUN_GRAPH)
  foreach(line IN LISTS lines)
    _fsdprun_check_record("${line}")
  endforeach()
  list(JOIN lines "\n" text)
  file(GENERATE OUTPUT ${file} CONTENT "${text}\n")
endfunction()

# What is linked otherwise than by DEPS is not in the graph: tests of what links it would not be selected.
function(_fsdprun_check_record line)
  string(REGEX MATCH "^[^|]*" name "${line}")
  string(REGEX REPLACE "^.*\\|" "" deps "${line}")
  string(REPLACE "," ";" deps "${deps}")
  get_target_property(linked ${name} LINK_LIBRARIES)
  foreach(dep IN LISTS linked)
    if(TARGET ${dep} AND NOT dep IN_LIST deps)
      get_target_property(side ${dep} FSDPRUN_SIDE)
      if(side)
        message(FATAL_ERROR "${name} links ${dep}, which is not among its DEPS: pass it there")
      endif()
    endif()
  endforeach()
endfunction()

function(_fsdprun_record name directory side layer)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${directory})
  list(JOIN ARGN "," deps)
  set_property(GLOBAL APPEND PROPERTY FSDPRUN_GRAPH "${name}|${folder}|${side}|${layer}|${deps}")
endfunction()

# fsdprun_binary(NAME fsdprun OUTPUT fsdprun SIDE control SRCS main.cc DEPS ... [FOR_TESTS])
function(fsdprun_binary)
  cmake_parse_arguments(ARG "FOR_TESTS" "NAME;OUTPUT;SIDE" "SRCS;DEPS;EXTERNAL" ${ARGN})
  _fsdprun_check_arguments(fsdprun_binary)
  _fsdprun_check_side(fsdprun_binary "${ARG_NAME}" "${ARG_SIDE}")
  _fsdprun_check_edges(${ARG_NAME} ${ARG_SIDE} 99 ${ARG_DEPS})
  _fsdprun_check_external(${ARG_NAME} ${ARG_SIDE} ${ARG_EXTERNAL})
  list(GET ARG_SRCS 0 main)
  cmake_path(ABSOLUTE_PATH main)
  cmake_path(GET main PARENT_PATH folder)
  _fsdprun_record(${ARG_NAME} ${folder} ${ARG_SIDE} 99 ${ARG_DEPS})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE fsdprun_options ${ARG_DEPS} ${ARG_EXTERNAL})
  set_target_properties(${ARG_NAME} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT} FSDPRUN_SIDE ${ARG_SIDE})
  _fsdprun_needs_rpc(rpc ${ARG_DEPS} ${ARG_EXTERNAL})
  if(rpc AND FSDPRUN_STATIC_RPC AND NOT FSDPRUN_SANITIZE)
    # To look up the C++ library's symbols is a quarter of the time that `fsdprun --version` takes. (Beside -static-pie,
    # as for the keeper, these two would make a program that crashes.)
    target_link_options(${ARG_NAME} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  _fsdprun_needs_torch(torch ${ARG_DEPS} ${ARG_EXTERNAL})
  if(torch)
    _fsdprun_reuse_torch_headers(${ARG_NAME})
  elseif(rpc)
    _fsdprun_compile_as_control(${ARG_NAME} fsdprun_rpc_headers OFF)
  endif()
  if(TARGET programs AND NOT ARG_FOR_TESTS)
    add_dependencies(programs ${ARG_NAME})
  endif()
endfunction()
